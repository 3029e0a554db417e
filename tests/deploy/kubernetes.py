"""Checks deploy/chart and deploy/kustomize:

    kubernetes.py --kvasir BINARY [--regenerate]

Helm's own code renders the chart with each set of values, which must equal the committed files of deploy/kustomize. These
pass the published schemas of Kubernetes and of the operators. Each container of ours is started with --print-config, so that the program itself
accepts its arguments and variables. --regenerate writes the files of deploy/kustomize.
"""

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import kubernetes_validate
import yaml
from helm_python import Chart, HelmError, lint

from compose import ROOT, read_image

CHART, VALUES, KUSTOMIZE = ROOT / "deploy/chart", ROOT / "deploy/values", ROOT / "deploy/kustomize"
# Sets of values. A set without a file in deploy/values has the defaults.
SETS = ["serve", "fleet", "complete"]
RELEASE = "kvasir"
# Further values, whose objects are checked, but not committed.
FURTHER = {
    "one shard without NATS": {
        "index": {"shards": 1},
        "nats": {"enabled": False},
        "engine": {"enabled": True},
        "tls": {"secret": "own"},
        "networkPolicy": {"enabled": True},
    },
    "agents on the nodes without NATS": {
        "index": {"shards": 1},
        "nats": {"enabled": False},
        "agent": {"daemonSet": {"enabled": True, "model": "m"}},
    },
    "NATS elsewhere": {
        "nats": {"url": "tls://nats-0.nats:4222,tls://nats-1.nats:4222", "credentials": {"secret": "1"}},
        "engine": {
            "enabled": True,
            "model": "123",
            "env": [{"name": "HF_TOKEN", "value": "1"}],
            "volumes": [{"name": "models", "emptyDir": {}}],
            "volumeMounts": [{"name": "models", "mountPath": "/models"}],
            "resources": {"limits": {"amd.com/gpu": 1}},
            "pod": {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
        },
        "agent": {"args": ["--lora", "7=a,b"], "env": [{"name": "KVASIR_AGENT_LOG_FILTER", "value": "debug"}]},
        "index": {"env": [{"name": "KVASIR_MAX_INDEX_BYTES", "value": "1GiB"}], "pod": {"nodeSelector": {"a": "b"}}},
        "gateway": {"replicas": 12, "autoscaling": {"enabled": True}},
        "engineKey": {"secret": "1"},
        "image": {"pullSecrets": [{"name": "registry"}]},
        "tracing": {"endpoint": "http://collector:4317", "ratio": 1e-05},
    },
    "engines without agents": {
        "index": {"engineSelector": {"app": "vllm", "tier": "llm"}, "enginePort": 8001},
        "engineKey": {"secret": "key"},
        "nats": {"enabled": False},
        "tls": {"secret": "own"},
    },
    "engines without agents or Kubernetes' API": {"index": {"engineSelector": {"app": "vllm"}, "discovery": "dns"}},
    "serve before engines with keys": {
        **yaml.safe_load((VALUES / "serve.yaml").read_text()),
        "serve": {"enabled": True, "engineSelector": {"tier": "llm"}, "discovery": "dns"},
        "engineKey": {"secret": "key"},
        "tls": {"secret": "own", "clients": True},
        # helm --set makes strings of decimal numbers.
        "tracing": {"endpoint": "http://collector:4317", "ratio": "0.5"},
        "monitoring": {"enabled": True},
        "networkPolicy": {"enabled": True},
    },
}
# What the chart refuses, with a part of its message.
REFUSED = {
    "tls.clients needs tls.secret": {"tls": {"clients": True}},
    "need each other": {"identities": {"secret": "own"}},
    "with agents needs NATS": {
        "index": {"shards": 1},
        "nats": {"enabled": False},
        "engine": {"enabled": True},
        "identities": {"secret": "own"},
        "token": {"secret": "own"},
    },
    "no certificate has the nodes": {
        "index": {"shards": 1},
        "nats": {"enabled": False},
        "tls": {"secret": "own"},
        "agent": {"daemonSet": {"enabled": True, "model": "m"}},
    },
    "needs NATS": {"nats": {"enabled": False}},
    "caConfigMap is required": {"tls": {"secret": "own"}, "gateway": {"route": {"enabled": True}}},
    "daemonSet.model is required": {"agent": {"daemonSet": {"enabled": True}}},
    "replicas needs an index": {"index": {"replicas": 0}},
}
VERSION = "1.37"
# Kinds of operators, whose schemas are not Kubernetes' own.
OPERATORS = {"BackendTLSPolicy", "HTTPRoute", "PodMonitor", "PrometheusRule"}
SUBSTITUTED = {"POD_NAME": "engine-0", "POD_NAMESPACE": "default", "POD_IP": "10.0.0.7", "NODE_NAME": "node-0"}


def values(name: str) -> dict:
    file = VALUES / f"{name}.yaml"
    return (yaml.safe_load(file.read_text()) or {}) if file.exists() else {}


def render(chart: Chart, stated: dict, release: str = RELEASE) -> list[str]:
    """Documents that the chart renders for the values, sorted by kind and name."""
    rendered = chart.render(stated, name=release)
    texts = [text for file, text in rendered.items() if not file.endswith("NOTES.txt")]
    documents = [document.strip() for text in texts for document in re.split(r"^---$", text, flags=re.MULTILINE)]
    documents = [document for document in documents if yaml.safe_load(document)]
    return sorted(documents, key=lambda document: key(yaml.safe_load(document)))


def key(document: dict) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def tidy(text: str) -> str:
    """Without lines that have spaces alone, which templates leave."""
    return re.sub(r"\n\s*(?=\n)", "", text)


def files_of(chart: Chart, name: str) -> dict[Path, str]:
    documents = "\n---\n".join(tidy(document) for document in render(chart, values(name)))
    head = f"# Made from deploy/chart with the values of the set {name}; a test keeps this file equal to it.\n"
    return {KUSTOMIZE / name / "kvasir.yaml": f"{head}{documents}\n"}


def containers(document: dict) -> list[dict]:
    pod = document.get("spec", {}).get("template", {}).get("spec", {})
    return [*pod.get("initContainers", []), *pod.get("containers", [])]


def check_references(documents: list[dict]) -> None:
    """Selectors find pods, ports have names, addresses are services, and files are in mounted volumes."""
    services = {document["metadata"]["name"] for document in documents if document["kind"] == "Service"}
    replicas = {
        f"{document['metadata']['name']}-{number}"
        for document in documents
        if document["kind"] == "StatefulSet"
        for number in range(document["spec"]["replicas"])
    }
    pods = [document for document in documents if containers(document)]
    labels = [document["spec"]["template"]["metadata"]["labels"] for document in pods]
    for document in documents:
        spec, name = document["spec"] if "spec" in document else {}, key(document)
        if document["kind"] in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
            selector = spec.get("selector") or spec.get("podSelector")
            selector = selector.get("matchLabels", selector)
            if "app.kubernetes.io/name" in selector:
                found = [pod for pod, own in zip(pods, labels) if selector.items() <= own.items()]
                assert found, f"{name}: no pod has {selector}"
                if document["kind"] == "Service":
                    ports = {port["name"] for pod in found for at in containers(pod) for port in at.get("ports", [])}
                    wanted = {port.get("targetPort", port["name"]) for port in spec["ports"]}
                    assert wanted <= ports, f"{name}: {wanted - ports} are no ports of {ports}"
        for container in containers(document):
            mounts = {mount["name"]: mount["mountPath"] for mount in container.get("volumeMounts", [])}
            volumes = {volume["name"] for volume in document["spec"]["template"]["spec"].get("volumes", [])}
            volumes |= {claim["metadata"]["name"] for claim in document["spec"].get("volumeClaimTemplates", [])}
            assert mounts.keys() <= volumes, f"{name}: {mounts.keys() - volumes} are none of the volumes {volumes}"
            stated = [*container.get("args", []), *(env.get("value", "") for env in container.get("env", []))]
            for file in re.findall(r"/etc/kvasir/[^\s,;]+", " ".join(stated)):
                assert str(Path(file).parent) in mounts.values(), f"{name}: {file} is in no mount {mounts}"
            # The collector of traces is the user's.
            own = [env for env in container.get("env", []) if not env["name"].endswith("_OTLP_ENDPOINT")]
            stated = [env.get("value", "") for env in own]
            for address in re.findall(r"(?:https?|nats)://([^\s,;]+):\d+", " ".join(stated)):
                if address == "$(POD_IP)":
                    continue
                if address.endswith(".nats"):
                    # NATS of the user.
                    continue
                parts = address.removesuffix(".$(POD_NAMESPACE).svc").split(".")
                assert parts[-1] in services, f"{name}: {address} is no service of {services}"
                assert len(parts) == 1 or parts[0] in {*replicas, "$(POD_NAME)"}, f"{name}: {address} is none of the pods {replicas}"


def check_programs(documents: list[dict], binary: Path) -> int:
    """The program accepts the arguments and variables of each of our containers."""
    _, image = read_image("kvasir")
    seen = 0
    for document in documents:
        for container in containers(document):
            if container["name"] in ("vllm", "nats"):
                continue
            stated = {env["name"]: env["value"] for env in container.get("env", []) if "value" in env}

            def placed(text: str) -> str:
                return re.sub(r"\$\((\w+)\)", lambda found: SUBSTITUTED[found[1]], text)

            command = [str(binary), *map(placed, container["args"]), "--print-config"]
            environment = image | {name: placed(value) for name, value in stated.items()}
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{key(document)}: {command}\n{done.stderr}"
            assert "no option" not in done.stderr, f"{key(document)}: {done.stderr}"
            tomllib.loads(done.stdout)
            seen += 1
    return seen


def faults_of_operators(documents: list[dict]) -> str:
    """The errors of the operators' schemas, as text; empty if all objects are valid."""
    installed = Path(sys.prefix)
    command = [installed / "bin/node", installed.parent / "operators/validate.mjs"]
    run = subprocess.run(command, input=json.dumps(documents), capture_output=True, text=True)
    return "" if run.returncode == 0 else f"exit code {run.returncode}: {run.stderr}"


def check_faults(documents: list[dict]) -> None:
    """Checks that a field which no schema has, and a value of a wrong type, would be found."""
    found = {document["kind"]: document for document in documents if document["kind"] in OPERATORS}
    assert found.keys() == OPERATORS, f"kinds of operators: {found.keys()}"
    for kind, document in found.items():
        unknown = faults_of_operators([{**document, "spec": {**document["spec"], "unknown": 1}}])
        assert "the schema has no /spec/unknown" in unknown, f"{kind}: {unknown}"
        for field, value in document["spec"].items():
            inner = [{**value[0], "unknown": 1}] if isinstance(value, list) and isinstance(value[0], dict) else None
            for wrong, place in ((17, f"spec/{field}"), (inner, f"/spec/{field}/0/unknown")):
                if wrong is not None:
                    faults = faults_of_operators([{**document, "spec": {**document["spec"], field: wrong}}])
                    assert place in faults, f"{kind}: {place} is not in {faults}"


def check(documents: list[dict], binary: Path) -> int:
    """Returns the number of containers of ours."""
    for document in documents:
        if document["kind"] not in OPERATORS:
            kubernetes_validate.validate(document, VERSION, strict=True)
    faults = faults_of_operators([document for document in documents if document["kind"] in OPERATORS])
    assert not faults, f"objects of operators are not valid:\n{faults}"
    check_references(documents)
    return check_programs(documents, binary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvasir", type=Path, required=True)
    parser.add_argument("--regenerate", action="store_true")
    options = parser.parse_args()
    chart = Chart.load(CHART)
    for name in SETS:
        report = lint(CHART, values(name), strict=True)
        assert not report.get("errors"), report
        for file, text in files_of(chart, name).items():
            if options.regenerate:
                file.parent.mkdir(exist_ok=True, parents=True)
                file.write_text(text)
            assert file.read_text() == text, f"{file} differs from the chart: run this with --regenerate"
        command = [Path(sys.executable).with_name("kubectl"), "kustomize", KUSTOMIZE / name]
        built = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        documents = [document for document in yaml.safe_load_all(built) if document]
        rendered = [yaml.safe_load(document) for document in render(chart, values(name))]
        assert sorted(documents, key=key) == sorted(rendered, key=key), f"{name}: kustomize changes documents"
        programs = check(documents, options.kvasir)
        if name == "complete":
            check_faults(documents)
        print(f"{name}: {len(documents)} documents, {programs} containers of ours accept their configuration")
    for name, stated in FURTHER.items():
        for release in (RELEASE, "123", "a-release-whose-name-is-as-long-as-helm-allows-it-to-"):
            chart.validate_schema(stated)
            documents = [yaml.safe_load(document) for document in render(chart, stated, release)]
            assert check(documents, options.kvasir) > 0, name
    for message, stated in REFUSED.items():
        try:
            chart.render(stated, name=RELEASE)
        except HelmError as error:
            assert message in str(error), error
        else:
            raise AssertionError(f"rendered, but: {message}")


if __name__ == "__main__":
    main()
