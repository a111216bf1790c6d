"""The files of deploy/ are consistent, publish nothing to the network and hold no password."""

import re
from typing import Any

import compose
import pytest
import yaml

from workflows.lib import instance

PASSWORDS = {"POSTGRES_PASSWORD", "DAGSTER_DB_PASSWORD", "MLFLOW_DB_PASSWORD"}


@pytest.fixture(scope="module")
def document():
    return compose.load(compose.example_variables() | dict.fromkeys(PASSWORDS, "x"))


def test_example_has_exactly_the_variables_of_compose():
    assert compose.variables_named() == set(compose.example_variables())


@pytest.mark.parametrize("name", sorted(PASSWORDS))
def test_compose_requires_every_password(name):
    assert compose.example_variables()[name] == ""
    with pytest.raises(KeyError, match=name):
        compose.load(compose.example_variables() | dict.fromkeys(PASSWORDS - {name}, "x"))


def test_passwords_come_from_the_environment_alone(document):
    values = [
        value for file in compose.DEPLOY.glob("*.yaml") for value in passwords_in(yaml.safe_load(file.read_text()))
    ]
    assert len(values) >= 6
    for value in values:
        assert set(value) == {"env"} if isinstance(value, dict) else re.fullmatch(r"\$\{\w+PASSWORD:\?.*\}", value), (
            value
        )
    for service in document["services"].values():
        assert not any("PASSWORD" in str(word).upper() for word in service.get("command", []))


def passwords_in(value: Any) -> list[Any]:
    """Return the values of all keys that contain PASSWORD."""
    if isinstance(value, list):
        return [found for item in value for found in passwords_in(item)]
    if not isinstance(value, dict):
        return []
    found = [item for key, item in value.items() if "PASSWORD" in key.upper()]
    return found + [other for item in value.values() for other in passwords_in(item)]


def test_only_the_two_uis_are_published_and_on_loopback_alone(document):
    published = {name: service["ports"] for name, service in document["services"].items() if "ports" in service}
    assert published == {"webserver": ["127.0.0.1:3000:3000"], "mlflow": ["127.0.0.1:5000:5000"]}
    assert all(service.get("network_mode") is None for service in document["services"].values())


def test_every_service_has_health_check_restart_and_dependencies(document):
    services = document["services"]
    assert set(services) == {"database", "mlflow", "code", "webserver", "daemon"}
    for service in services.values():
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][0] == "CMD"
        for needed, how in service.get("depends_on", {}).items():
            assert needed in services
            assert how == {"condition": "service_healthy"}
    for name in ("mlflow", "code", "webserver", "daemon"):
        assert services[name]["build"]["dockerfile"] == "deploy/Dockerfile"


def test_every_volume_is_declared_and_every_file_that_is_mounted_exists(document):
    for service in document["services"].values():
        for mount in service["volumes"]:
            source, target, *_ = mount.split(":")
            assert target.startswith("/")
            if source.startswith("./") and "." in source[2:]:
                assert (compose.DEPLOY / source).is_file(), mount
            elif not source.startswith("."):
                assert source in document["volumes"], mount


def test_shared_instance_differs_from_a_home_in_storage_only():
    own = yaml.safe_load(instance.DAGSTER_YAML)
    shared = yaml.safe_load((compose.DEPLOY / "dagster.yaml").read_text(encoding="utf-8"))
    assert {key: shared.get(key) for key in own} == own
    assert set(shared["storage"]) == {"postgres"}
    assert shared["storage"]["postgres"]["postgres_db"]["scheme"] == "postgresql+psycopg2"


def test_services_define_every_variable_of_the_settings(document):
    text = "".join((compose.DEPLOY / name).read_text(encoding="utf-8") for name in ("dagster.yaml", "workspace.yaml"))
    named = set(re.findall(r"\{env: (\w+)\}", text))
    for service in ("code", "webserver", "daemon"):
        assert named <= set(document["services"][service]["environment"])


def test_image_uses_pinned_versions_and_existing_files():
    lines = (compose.DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    installs = [line for line in lines if "pip install" in line]
    assert all("--constraint constraints.txt" in line or "--no-deps" in line for line in installs)
    assert "'.[services,s3,gcs]'" in installs[-1]  # services read and write stores
    images = "\n".join(lines).split("\nFROM ")[2:]  # all but the first stage, which the others start from
    assert len(images) == 2
    assert all("\nUSER bert" in image for image in images)
    let_through = (compose.DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert let_through[0] == "*"
    for line in lines:
        if line.startswith("COPY ") and "--from=" not in line:
            for name in line.split()[1:-1]:
                assert (compose.ROOT / name).exists()
                assert f"!{name}" in let_through
    copied = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}
    packages = {path.parent.name for path in compose.ROOT.glob("*/__init__.py")}
    assert {"bert_pipeline", "bert_model", "workflows"} <= copied & packages
