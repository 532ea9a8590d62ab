"""A PostgreSQL server of the tests' own: private port, socket and folder, stopped and removed in the end."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import polars as pl
import pytest

PASSWORD = "p@ss:w0rd/9"  # noqa: S105


@dataclass(frozen=True)
class Server:
    """A running server with one database per name; its user is ``reader``."""

    programs: Path
    folder: Path
    port: int
    user: str | None

    def address(self, database: str, *, password: str = PASSWORD, port: int | None = None) -> str:
        """Return the address of a database."""
        return f"postgresql://reader:{quote(password, safe='')}@127.0.0.1:{port or self.port}/{database}"

    def run(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs as a user whom it accepts."""
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PGPASSWORD": PASSWORD}
        command = [str(self.programs / program), *arguments]
        done = subprocess.run(
            command, user=self.user, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = (
            f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories={self.folder} -c fsync=off"
        )
        log = str(self.folder / "log")
        self.run("pg_ctl", "start", "-w", "-D", str(self.folder / "data"), "-l", log, "-o", options)

    def stop(self) -> None:
        """Stop the server at once, as a crash would."""
        self.run("pg_ctl", "stop", "-w", "-D", str(self.folder / "data"), "-m", "immediate")

    def load(self, database: str, tables: dict[str, pl.DataFrame], schema: str = "public") -> None:
        """Create a database with these tables."""
        from adbc_driver_postgresql import dbapi

        self.run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "reader", database)
        with dbapi.connect(self.address(database)) as connection, connection.cursor() as cursor:
            cursor.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
            for name, frame in tables.items():
                cursor.adbc_ingest(name, frame.to_arrow(), mode="create", db_schema_name=schema)
            connection.commit()


def _programs() -> Path | None:
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "initdb").is_file() and (place / "pg_ctl").is_file()), None)


def _user() -> str | None:
    """PostgreSQL does not run as root."""
    if os.getuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Start a server of our own, or skip where PostgreSQL or its driver is not installed."""
    pytest.importorskip("adbc_driver_postgresql", reason="the driver for PostgreSQL is not installed")
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL (initdb, pg_ctl) is not installed")
    folder = Path(tempfile.mkdtemp(prefix="plm-postgres-"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = Server(programs, folder, port, _user())
    try:
        (folder / "password").write_text(PASSWORD + "\n")
        if server.user is not None:
            for path in (folder, folder / "password"):
                shutil.chown(path, server.user)
        how = ("-U", "reader", "--auth=scram-sha-256", f"--pwfile={folder / 'password'}", "-E", "UTF8", "--no-sync")
        server.run("initdb", "-D", str(folder / "data"), *how)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
