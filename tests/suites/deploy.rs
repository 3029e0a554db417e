//! What deploy/ has: the chart, the Compose file, rules, dashboards and units.

use kvasir_sim::{place, server};
use kvasir_tests::nats;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("a command that can be run");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{out}\n{err}");
    out
}

/// Folder with the installed checkers.
fn checkers() -> PathBuf {
    let folder = place::cache().join("deploy");
    run(Command::new(root().join("tests/deploy/install")).arg(&folder));
    folder
}

/// A Python script of tests/deploy. With the variable `KVASIR_REGENERATE`, it writes what it otherwise checks.
fn script(checkers: &Path, name: &str) -> Command {
    let mut command = Command::new(checkers.join("venv/bin/python"));
    command.arg(root().join("tests/deploy").join(name)).env("PYTHONDONTWRITEBYTECODE", "1");
    if env::var_os("KVASIR_REGENERATE").is_some() {
        command.arg("--regenerate");
    }
    command
}

fn binary(name: &str) -> PathBuf {
    server::binary_of(name).expect("a built program")
}

#[test]
fn the_chart_is_what_kustomize_has_and_the_programs_accept_it() {
    let mut check = script(&checkers(), "kubernetes.py");
    check.arg("--kvasir").arg(binary("kvasir"));
    let out = run(&mut check);
    assert_eq!(out.lines().count(), 3, "{out}");
}

#[test]
fn dashboards_are_made_from_their_description() {
    run(&mut script(&checkers(), "dashboards.py"));
}

#[test]
fn rules_fire_when_they_should() {
    let promtool = checkers().join("prometheus/usr/bin/promtool");
    let rules = root().join("deploy/chart/files/rules.yaml");
    let tests = root().join("tests/deploy/rules.yaml");
    run(Command::new(&promtool).args(["check", "rules"]).arg(&rules));
    run(Command::new(&promtool).args(["test", "rules"]).arg(&tests));
    let tested = fs::read_to_string(tests).expect("tests");
    let rules = fs::read_to_string(rules).expect("rules");
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tested.contains(&format!("alertname: {alert}\n")), "{alert} has no test");
    }
}

#[test]
fn systemd_accepts_the_unit_of_each_program() {
    checkers();
    let folder = tempfile::tempdir().expect("a folder");
    let unit = fs::read_to_string(root().join("deploy/systemd/kvasir@.service")).expect("a unit");
    let program = binary("kvasir");
    let unit = unit.replace("/usr/local/bin/kvasir", program.to_str().expect("a path"));
    for name in ["serve", "index", "router", "gateway", "agent"] {
        let file = folder.path().join(format!("kvasir@{name}.service"));
        fs::write(&file, &unit).expect("a file");
        // Unknown keys and values are warnings.
        let output = Command::new("systemd-analyze").arg("verify").arg(&file).output();
        let output = output.expect("a command that can be run");
        let warnings = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && warnings.is_empty(), "{name}: {warnings}");
    }
}

#[tokio::test]
async fn the_compose_fleet_survives_losses_and_its_dashboards_have_data() {
    let nats = nats::binary().await.expect("a nats-server");
    let checkers = checkers();
    let mut fleet = script(&checkers, "fleet.py");
    fleet.arg("--kvasir").arg(binary("kvasir"));
    fleet.arg("--mock-engine").arg(binary("mock-engine"));
    fleet.arg("--nats").arg(nats);
    fleet.arg("--prometheus").arg(checkers.join("prometheus/usr/bin/prometheus"));
    run(&mut fleet);
}
