"""Operating running services: health checks, database upgrades, and database dumps."""

import subprocess
from pathlib import Path

import pytest
from dagster_api import wait_for
from stack import Stack

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(2400, method="signal")]


def run(stack: Stack, service: str, command: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command as `docker compose exec` does: with a service's variables."""
    return subprocess.run(command, env=stack.environment(service), capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("service", ["mlflow", "code", "webserver", "daemon"])
def test_health_check_of_a_running_service_succeeds(stack, service):
    wait_for(lambda: run(stack, service, stack.health_check(service)).returncode == 0, f"health of {service}")


def test_health_check_of_a_service_that_is_down_fails(stack):
    stack.servers["webserver"].stop()
    try:
        assert run(stack, "webserver", stack.health_check("webserver")).returncode != 0
    finally:
        stack.start("webserver")


def test_databases_are_upgraded_by_the_documented_commands(stack):
    backend = next(word for word in stack.command("mlflow") if word.startswith("--backend-store-uri="))
    for service, command in (
        ("daemon", ["dagster", "instance", "migrate"]),
        ("mlflow", ["mlflow", "db", "upgrade", backend.partition("=")[2]]),
    ):
        result = run(stack, service, command)
        assert result.returncode == 0, result.stderr


def test_restored_database_dumps_are_equal(stack, dagster):
    assert dagster.unfinished_runs() == []
    for name, tables in (("dagster", ("runs", "event_logs")), ("mlflow", ("runs", "metrics", "model_versions"))):
        copy = f"restored_{name}"
        dump = stack.database.run("pg_dump", "--no-owner", "--format=custom", name)
        stack.database.run("createdb", f"--owner={name}", copy)
        stack.database.run("pg_restore", "--no-owner", f"--role={name}", f"--dbname={copy}", given=dump)
        for table in tables:
            query = f"--command=select count(*), md5(string_agg(t::text, ' ' order by t::text)) from {table} t"
            first = stack.database.run("psql", f"--dbname={name}", query)
            assert stack.database.run("psql", f"--dbname={copy}", query, **stack.login(name)) == first, table


def test_no_password_is_left_in_databases_logs_or_files(stack, dagster):
    assert dagster.unfinished_runs() == []
    secrets = {**stack.secrets, "POSTGRES_PASSWORD": stack.database.password}
    dumped = {name: stack.database.run("pg_dump", "--inserts", name).decode() for name in ("dagster", "mlflow")}
    for name, secret in secrets.items():
        for database, text in dumped.items():
            assert secret not in text, f"{name} is in the database {database}"
        for path in files_of(stack):
            assert secret.encode() not in path.read_bytes(), f"{name} is in {path}"


def files_of(stack: Stack) -> list[Path]:
    """All logs, and all files of the home and of MLflow."""
    return [path for path in stack.base.rglob("*") if path.is_file()]
