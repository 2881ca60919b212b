"""Where weights are looked for, and how they are brought here; the only network is a server of this test."""

import http.server
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kaffee.errors import CheckpointError, ConfigError
from kaffee.foundation.hub import _fetch, _models_folder, from_pretrained, locate, pull
from kaffee.foundation.weights import DEFAULT, KNOWN, licence_terms

from .conftest import make_core, publish, write_release

RELEASE = KNOWN[DEFAULT]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Nothing of the user's own folders, and no proxy."""
    for variable in ("HF_HUB_CACHE", "HF_ENDPOINT", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("KAFFEE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("no_proxy", "*")
    (tmp_path / "small").mkdir()
    write_release(tmp_path / "small", DEFAULT)
    publish(monkeypatch, tmp_path / "small")
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


def test_a_file_may_have_a_plain_configuration_beside_it(release):
    (release / RELEASE.config).rename(release / "config.json")
    assert same(from_pretrained(release / RELEASE.weights))


@pytest.mark.parametrize("cache", ["hf/hub", "cache"])
def test_a_name_is_found_in_kaffees_folder_then_in_the_hubs_cache(home, release, monkeypatch, cache):
    if cache == "cache":
        monkeypatch.setenv("HF_HUB_CACHE", str(home / "cache"))
    snapshot = home / cache / "models--DurstewitzLab--dynamix/snapshots/abc"
    snapshot.parent.mkdir(parents=True)
    release.rename(snapshot)
    assert locate(DEFAULT).weights.parent == snapshot
    assert same(from_pretrained())
    _models_folder().mkdir(parents=True)
    write_release(_models_folder(), DEFAULT)
    assert locate(DEFAULT).weights.parent == home / "home/models"


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
    assert sorted(file.name for file in _models_folder().iterdir()) == sorted(RELEASE.files)
    (hub[1] / RELEASE.weights).unlink()
    assert same(from_pretrained(download=True))  # from here on it is local


def test_a_damaged_download_is_not_stored(hub):
    address, folder = hub
    content = (folder / RELEASE.weights).read_bytes()
    (folder / RELEASE.weights).write_bytes(content[:-10])
    with pytest.raises(CheckpointError, match="was truncated"):
        pull(endpoint=address)
    assert not _models_folder().exists()


def test_a_download_that_ends_early_is_a_clear_error(serve, tmp_path):
    with pytest.raises(CheckpointError, match=r"ended after 100 of 1000 bytes|cannot be fetched"):
        _fetch(serve(tmp_path, Cut) + "/x")


def test_a_download_that_is_too_large_is_refused(hub):
    with pytest.raises(CheckpointError, match="larger than 50 bytes"):
        _fetch(f"{hub[0]}/{RELEASE.repository}/resolve/main/{RELEASE.weights}", limit=50)


def test_addresses_that_cannot_be_fetched_are_clear_errors(serve, tmp_path):
    address = serve(tmp_path)
    with pytest.raises(CheckpointError, match=r"HTTP 404.*kaffee models pull --from"):
        _fetch(f"{address}/missing")
    with pytest.raises(CheckpointError, match="cannot be fetched"):
        _fetch("http://127.0.0.1:1/x", timeout=2)
    for address in ("file:///etc/hostname", "http://example.org/x"):
        with pytest.raises(ConfigError, match="is not an https address"):
            _fetch(address)


def test_models_can_be_copied_from_a_path(release):
    located = pull(source=release)
    assert located.weights.parent == _models_folder()
    assert same(from_pretrained())
    with pytest.raises(ConfigError, match="Unknown model 'dynamic'"):
        pull("dynamic")


def alter(folder):
    """Flip one bit of the last number."""
    path = folder / RELEASE.weights
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


def test_altered_weights_under_a_published_name_are_a_warning(release):
    alter(release)
    with pytest.warns(UserWarning, match=r"not the file kaffee was measured with: digest .* Fetch it again"):
        from_pretrained(release)


def test_so_is_another_configuration(release):
    config = release / RELEASE.config
    config.write_text(config.read_text().replace('"P": 3', '"P": 2'))
    with pytest.warns(UserWarning, match="measured with: num_gates = 2 instead of 3"):
        from_pretrained(release)


def test_a_copy_with_another_header_is_the_same_model(release):
    path = release / RELEASE.weights
    before = path.read_bytes()
    save_file(load_file(path), path, metadata={"format": "pt"})
    assert path.read_bytes() != before
    assert same(from_pretrained(release))


def test_models_of_another_name_are_nobodys_business(home):
    (home / "own").mkdir()
    assert same(from_pretrained(write_release(home / "own")[0]))


def test_a_good_model_is_not_replaced_by_an_altered_one_unless_forced(release):
    stored = pull(source=release).weights
    good = stored.read_bytes()
    alter(release)
    with pytest.raises(CheckpointError, match=r"is there already \(sha256 .* nothing was replaced.*--force"):
        pull(source=release)
    assert stored.read_bytes() == good
    pull(source=release, force=True)
    assert stored.read_bytes() != good
    pull(source=release)  # the same file again


def test_the_published_model_replaces_an_altered_or_damaged_one(home, release):
    alter(release)
    stored = pull(source=release).weights
    pull(source=home / "small")
    assert same(from_pretrained())
    stored.write_bytes(b"cut off")
    pull(source=release)  # altered, but there is nothing to lose
    assert stored.read_bytes() == (release / RELEASE.weights).read_bytes()


def test_the_published_weights_are_known(models):
    """Not the small ones of these tests."""
    located = locate(models / RELEASE.weights)
    assert RELEASE.differences(located.read()) == ""


def test_what_is_made_from_published_weights_says_whose_they_are(release):
    model = from_pretrained(release)
    terms = licence_terms(model)
    assert terms["foundation_model"] == model.origin
    assert (terms["licence"], terms["attribution"]) == (RELEASE.licence, RELEASE.attribution)
    assert licence_terms(replace(model, origin="mine sha256:0")) == {"foundation_model": "mine sha256:0"}
    assert licence_terms(object()) == {}
