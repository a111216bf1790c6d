"""One jar of many, for Spark: its job server sends each jar of its classpath to the executors."""

import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

# Parts of Spark that the data jobs do not use.
UNUSED = re.compile(
    r"(rocksdbjni|breeze|hive|mesos|spire|spark-(mllib|mesos|repl|yarn|kubernetes|hive)|kubernetes|derby|datanucleus"
    r"|arrow|orc|parquet|tink|cats|scala-compiler|lapack|arpack|blas|JTransforms|algebra|curator|zookeeper|okhttp)[-_]"
)


def merge_jars(target: Path, jars: Iterable[Path]) -> None:
    """Write the files of all jars; lists of services are joined, of other files the first one counts."""
    services: dict[str, list[bytes]] = {}
    names: set[str] = set()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as merged:
        for jar in jars:
            if UNUSED.match(jar.name):
                continue
            with zipfile.ZipFile(jar) as file:
                for name in file.namelist():
                    if name.startswith("META-INF/services/") and not name.endswith("/"):
                        services.setdefault(name, []).append(file.read(name))
                    elif name not in names and not name.endswith((".SF", ".RSA", ".DSA", "module-info.class")):
                        names.add(name)
                        merged.writestr(name, file.read(name))
        for name, texts in services.items():
            merged.writestr(name, b"\n".join(texts))
