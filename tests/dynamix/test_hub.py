"""Where weights are looked for, and how they are brought here; the only network is a server of this test."""

import http.server
import threading
from functools import partial

import numpy as np
import pytest

from kaffee.dynamix import from_pretrained
from kaffee.dynamix.hub import DEFAULT, KNOWN, fetch, locate, models_folder, pull
from kaffee.errors import CheckpointError, ConfigError

from .conftest import make_core, write_release

RELEASE = KNOWN[DEFAULT]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Nothing of the user's own folders, and no proxy."""
    for variable in ("HF_HUB_CACHE", "HF_ENDPOINT", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("KAFFEE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path


@pytest.fixture
def release(tmp_path):
    """A folder with a small model under the published names."""
    folder = tmp_path / "release"
    folder.mkdir()
    path, config = write_release(folder, DEFAULT)
    assert (path.name, config.name) == RELEASE.files
    return folder


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


class Cut(Quiet):
    """Promises more than it sends."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(bytes(100))


@pytest.fixture
def serve():
    servers = []

    def start(folder, handler=Quiet):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=folder))
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def hub(tmp_path, serve):
    """A model hub on this machine: its address, and the folder of the model in it."""
    folder = tmp_path / "hub" / RELEASE.repository / "resolve" / "main"
    folder.mkdir(parents=True)
    write_release(folder, DEFAULT)
    return serve(tmp_path / "hub"), folder


def same(core):
    np.testing.assert_array_equal(core.W, make_core(np.float32, num_frames=0).W)
    return True


def test_a_file_or_a_folder_is_read(release):
    assert same(from_pretrained(release / RELEASE.weights))
    assert same(from_pretrained(str(release)))
    assert locate(release).place == "a path"


def test_a_file_may_have_a_plain_configuration_beside_it(release):
    (release / RELEASE.config).rename(release / "config.json")
    assert same(from_pretrained(release / RELEASE.weights))


def test_a_name_is_found_in_kaffees_folder_then_in_the_hubs_cache(home, release):
    snapshot = home / "hf/hub/models--DurstewitzLab--dynamix/snapshots/abc"
    snapshot.parent.mkdir(parents=True)
    release.rename(snapshot)
    assert locate(DEFAULT).weights.parent == snapshot
    assert same(from_pretrained())
    models_folder().mkdir(parents=True)
    write_release(models_folder(), DEFAULT)
    assert locate(DEFAULT).weights.parent == home / "home/models"


def test_the_hubs_cache_may_be_elsewhere(home, release, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "cache"))
    snapshot = home / "cache/models--DurstewitzLab--dynamix/snapshots/abc"
    snapshot.parent.mkdir(parents=True)
    release.rename(snapshot)
    assert same(from_pretrained())


def test_without_weights_the_error_says_where_it_looked_and_what_to_do(home):
    with pytest.raises(CheckpointError) as caught:
        from_pretrained()
    text = str(caught.value)
    assert str(home / "home" / "models") in text
    assert str(home / "hf" / "hub") in text
    assert "kaffee models pull" in text
    assert RELEASE.config in text


def test_paths_that_cannot_be_used_are_clear_errors(home, release):
    with pytest.raises(CheckpointError, match=r"no weight file or folder nowhere/x.safetensors"):
        from_pretrained("nowhere/x.safetensors")
    with pytest.raises(ConfigError, match=f"Did you mean '{DEFAULT}'"):
        from_pretrained("dynamix-3d-alrnn")
    with pytest.raises(CheckpointError, match=r"is no .safetensors file"):
        from_pretrained(release / RELEASE.config)
    with pytest.raises(CheckpointError, match=r"one .safetensors file; found: none"):
        from_pretrained(home)
    (release / RELEASE.config).unlink()
    with pytest.raises(CheckpointError, match=r"there is no configuration .*config_3d-alrnn-v1.0.json or config.json"):
        from_pretrained(release)
    other, _ = write_release(release, "dynamix-a")
    (release / RELEASE.weights).rename(release / "b.safetensors")
    with pytest.raises(CheckpointError, match=r"found: b.safetensors, dynamix-a.safetensors"):
        from_pretrained(release)
    assert same(from_pretrained(other))


def test_weights_are_downloaded_only_if_asked(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub[0])
    with pytest.raises(CheckpointError, match="not on this machine"):
        from_pretrained()
    assert same(from_pretrained(download=True))
    assert sorted(file.name for file in models_folder().iterdir()) == sorted(RELEASE.files)
    (hub[1] / RELEASE.weights).unlink()
    assert same(from_pretrained(download=True))  # from here on it is local


def test_a_damaged_download_is_not_stored(hub):
    address, folder = hub
    content = (folder / RELEASE.weights).read_bytes()
    (folder / RELEASE.weights).write_bytes(content[:-10])
    with pytest.raises(CheckpointError, match="was truncated"):
        pull(endpoint=address)
    assert not models_folder().exists()


def test_a_download_that_ends_early_is_a_clear_error(serve, tmp_path):
    with pytest.raises(CheckpointError, match=r"ended after 100 of 1000 bytes|cannot be fetched"):
        fetch(serve(tmp_path, Cut) + "/x")


def test_a_download_that_is_too_large_is_refused(hub):
    with pytest.raises(CheckpointError, match="larger than 50 bytes"):
        fetch(f"{hub[0]}/{RELEASE.repository}/resolve/main/{RELEASE.weights}", limit=50)


def test_addresses_that_cannot_be_fetched_are_clear_errors(serve, tmp_path):
    address = serve(tmp_path)
    with pytest.raises(CheckpointError, match=r"HTTP 404.*kaffee models pull --from"):
        fetch(f"{address}/missing")
    with pytest.raises(CheckpointError, match="cannot be fetched"):
        fetch("http://127.0.0.1:1/x", timeout=2)
    for address in ("file:///etc/hostname", "http://example.org/x"):
        with pytest.raises(ConfigError, match="is not an https address"):
            fetch(address)


def test_models_can_be_copied_from_a_path(release):
    located = pull(source=release)
    assert located.weights.parent == models_folder()
    assert same(from_pretrained())
    with pytest.raises(ConfigError, match="Unknown model 'dynamic'"):
        pull("dynamic")
