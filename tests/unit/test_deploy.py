"""What is deployed agrees with the code: settings, paths, metrics, and the formats of the files."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from app.config import known_env_names, load_settings
from app.house import MIB
from tests.helpers.metric_names import defined_metrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = ("compose.yaml", "compose.gpu.yaml")
CLIENT_ENV = {"MMPREP_CLIENT_BASE_URL", "MMPREP_CLIENT_API_KEY"}


def _yaml(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def _sidecar() -> dict[str, Any]:
    spec: dict[str, Any] = _yaml("k8s/sidecar.yaml")["spec"]["template"]["spec"]
    return spec


def _environments() -> list[tuple[str, dict[str, str]]]:
    found: list[tuple[str, dict[str, str]]] = []
    plain, gpu = (_yaml(name)["services"] for name in COMPOSE)
    for service, body in plain.items():
        env = body.get("environment", {})
        found.append((f"compose:{service}", env))
        found.append((f"gpu:{service}", env | gpu.get(service, {}).get("environment", {})))
    spec = _sidecar()
    for container in (*spec["initContainers"], *spec["containers"]):
        env = {e["name"]: e.get("value", '["from-a-secret"]') for e in container["env"]}
        found.append((f"k8s:{container['name']}", env))
    dockerfile = (ROOT / "Dockerfile").read_text()
    found.append(("Dockerfile", dict(re.findall(r"\b(MMPREP_\w+)=(\S+)", dockerfile))))
    return [(where, {k: v for k, v in e.items() if k.startswith("MMPREP_")}) for where, e in found]


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_follows_the_schema(name: str) -> None:
    """The compose files use the format as it is, misspelt keys included."""
    schema = json.loads((ROOT / "tests/resources/compose.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(_yaml(name), schema)


def test_compose_refers_to_what_it_defines() -> None:
    """Services, volumes and bind mounts named anywhere in the file exist."""
    file = _yaml("compose.yaml")
    services = file["services"]
    for body in services.values():
        assert set(body.get("depends_on", ())) <= set(services)
        for key in ("ipc", "pid"):
            kind, _, other = body.get(key, "").partition(":")
            assert kind != "service" or other in services
        for volume in body.get("volumes", ()):
            if volume["type"] == "volume":
                assert volume["source"] in file["volumes"]
            elif volume["source"].startswith("."):
                assert (DEPLOY / volume["source"]).exists()
    assert set(_yaml("compose.gpu.yaml")["services"]) <= set(services)


def test_compose_shares_what_handles_need() -> None:
    """The engine sees mmprep's /dev/shm, and with GPUs also its devices and processes."""
    plain, gpu = (_yaml(name)["services"] for name in COMPOSE)
    assert plain["mmprep"]["ipc"] == "shareable"
    assert plain["engine"]["ipc"] == "service:mmprep"
    assert gpu["engine"]["pid"] == "service:mmprep"
    assert gpu["engine"]["deploy"] == gpu["mmprep"]["deploy"]


def test_compose_store_fits_its_shared_memory() -> None:
    """The store and staging fit the container's /dev/shm, else the start would be refused."""
    service = _yaml("compose.yaml")["services"]["mmprep"]
    env = service["environment"]
    needed = int(env["MMPREP_STORE__NBYTES"]) + int(env["MMPREP_STORE__STAGING_BYTES"])
    assert needed <= int(service["shm_size"].removesuffix("gb")) * 1024 * MIB


def test_kubernetes_store_fits_its_shared_memory() -> None:
    """Likewise for the pod's memory volume, which both containers mount at /dev/shm."""
    spec = _sidecar()
    env = {e["name"]: e.get("value") for e in spec["initContainers"][0]["env"]}
    shm = next(v for v in spec["volumes"] if v["name"] == "shm")["emptyDir"]
    assert shm["medium"] == "Memory"
    needed = int(env["MMPREP_STORE__NBYTES"]) + int(env["MMPREP_STORE__STAGING_BYTES"])
    assert needed <= int(shm["sizeLimit"].removesuffix("Gi")) * 1024 * MIB
    for container in (*spec["initContainers"], *spec["containers"]):
        mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
        assert mounts["shm"] == "/dev/shm"


def test_groups_let_the_engine_read_segments() -> None:
    """Wherever a segment's group is set, the engine is a member of it and may not write."""
    compose = _yaml("compose.yaml")["services"]
    spec = _sidecar()
    env = {e["name"]: e.get("value") for e in spec["initContainers"][0]["env"]}
    assert compose["mmprep"]["environment"]["MMPREP_STORE__GROUP"] in compose["engine"]["group_add"]
    assert int(env["MMPREP_STORE__GROUP"]) == spec["securityContext"]["fsGroup"]
    for mode in (compose["mmprep"]["environment"]["MMPREP_STORE__MODE"], env["MMPREP_STORE__MODE"]):
        assert load_settings({}, store={"mode": mode}).store.mode == 0o640


@pytest.mark.parametrize("env", [pytest.param(e, id=where) for where, e in _environments()])
def test_environment_is_accepted(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every variable set in a deployment is a setting, and its value passes the start's checks."""
    server = {k: v for k, v in env.items() if k not in CLIENT_ENV}
    assert set(server) <= known_env_names()
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    load_settings(server)


def test_probes_and_drain() -> None:
    """Probes ask paths that exist, and stopping waits longer than the drain."""
    sidecar = _sidecar()["initContainers"][0]
    assert sidecar["startupProbe"]["httpGet"]["path"] == "/readyz"
    assert sidecar["livenessProbe"]["httpGet"]["path"] == "/livez"
    drain_s = load_settings({}).server.drain_s
    assert _sidecar()["terminationGracePeriodSeconds"] > drain_s + 5
    grace = _yaml("compose.yaml")["services"]["mmprep"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > drain_s + 5


def test_prometheus_scrapes_the_compose_service() -> None:
    """The scrape target is mmprep's port in the compose network, and the rule file is there."""
    file = _yaml("prometheus/prometheus.yml")
    (job,) = file["scrape_configs"]
    assert job["metrics_path"] == "/metrics"
    assert job["static_configs"] == [{"targets": ["mmprep:8000"]}]
    for name in file["rule_files"]:
        assert (DEPLOY / "prometheus" / name).is_file()


def _used_metrics(text: str) -> set[str]:
    return set(re.findall(r"\bmmprep_[a-z_]+\b", text))


@pytest.mark.parametrize("name", ["prometheus/alerts.yml", "grafana/mmprep.json"])
def test_queries_name_real_metrics(name: str) -> None:
    """Alerts and panels ask for samples that the service exposes."""
    samples = {sample for names in defined_metrics().values() for sample in names}
    assert _used_metrics((DEPLOY / name).read_text()) <= samples


def test_dashboard_shows_every_metric() -> None:
    """Each metric is in a panel, and panels have unique ids and places."""
    dashboard = json.loads((DEPLOY / "grafana/mmprep.json").read_text())
    used = _used_metrics(json.dumps(dashboard["panels"]))
    missing = [n for n, samples in defined_metrics().items() if used.isdisjoint(samples)]
    assert missing == []
    panels = dashboard["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    assert len({(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}) == len(panels)


def test_alerts_are_complete() -> None:
    """Every alert has an expression, a severity and words for whoever is woken by it."""
    for group in _yaml("prometheus/alerts.yml")["groups"]:
        for rule in group["rules"]:
            assert rule["expr"], rule
            assert rule["labels"]["severity"] in {"warning", "critical"}
            assert rule["annotations"]["summary"]
            assert rule["annotations"]["description"]


def test_dockerfile_keeps_its_promises() -> None:
    """The image runs as another user than root, checks /livez, and copies what exists."""
    lines = [
        line
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    text = "\n".join(lines)
    assert "USER 10001:10001" in lines
    assert lines.index("USER 10001:10001") < lines.index('ENTRYPOINT ["mmprep"]')
    assert sum(line.startswith("FROM ") for line in lines) == 2
    assert "/livez" in next(line for line in lines if line.startswith("HEALTHCHECK"))
    assert "curl" not in text
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source


def test_image_extras_exist() -> None:
    """The extras that the image's variants install are extras of the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    used = set(re.findall(r"extras=([a-z,]+)", (ROOT / "Dockerfile").read_text()))
    assert used == {"server", "server,cuda"}
    for extras in used:
        assert set(extras.split(",")) <= set(project["optional-dependencies"])
