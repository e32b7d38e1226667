//! Units as systemd itself judges them, and their way into their place and out of it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use glim_service::install::{Action, InstallError, Places, install, perform, remove};
use glim_service::unit::{Scope, Unit};

fn unit(scope: Scope) -> Unit {
    Unit {
        name: "glim".to_owned(),
        scope,
        // A program that is there: `systemd-analyze verify` looks.
        executable: PathBuf::from("/bin/sh"),
        config: PathBuf::from("/etc/glim/glim.toml"),
        environment: PathBuf::from("/etc/glim/glim.env"),
        socket: Some("127.0.0.1:8000".parse().unwrap()),
        flags: vec!["--served-model-name".to_owned(), "a b 100%".to_owned()],
        restrict_devices: true,
    }
}

fn system() -> Scope {
    Scope::System { user: None }
}

/// Writes all files of a unit below a folder, and asks nobody.
fn written(unit: &Unit, root: &Path) -> (Places, Vec<Action>) {
    let places = Places::new(&unit.scope, Path::new("/home/a/.config")).below(root);
    let actions = install(unit, &places, true).unwrap();
    for action in &actions {
        if !matches!(action, Action::Systemctl(_)) {
            perform(action).unwrap();
        }
    }
    (places, actions)
}

/// What systemd-analyze prints. Where it is not there, this fails: a check that was not made is none.
fn analyze(args: &[&str]) -> (bool, String) {
    // A user's manager wants one, even if it starts nothing.
    let runtime = tempfile::tempdir().unwrap();
    let output = Command::new("systemd-analyze")
        .args(args)
        .env("XDG_RUNTIME_DIR", runtime.path())
        .output()
        .expect("systemd-analyze (package systemd) is needed for this test");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    for (scope, manager) in [(system(), "--system"), (Scope::User, "--user")] {
        let root = tempfile::tempdir().unwrap();
        let unit = unit(scope);
        let (places, _) = written(&unit, root.path());
        for name in ["glim.service", "glim.socket"] {
            let path = places.units.join(name);
            let (ok, text) = analyze(&["verify", "--man=no", manager, path.to_str().unwrap()]);
            // It complains of other units of the machine too.
            let ours: Vec<&str> = text.lines().filter(|line| line.contains("glim")).collect();
            assert!(ours.is_empty(), "{ours:#?}");
            assert!(ok, "{text}");
        }
    }
}

#[test]
fn systemd_sees_a_unit_that_is_wrong() {
    let root = tempfile::tempdir().unwrap();
    let (places, _) = written(&unit(system()), root.path());
    let path = places.units.join("glim.service");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replace("Restart=on-failure", "Restart=sometimes"),
    )
    .unwrap();
    let (_, text) = analyze(&["verify", "--man=no", path.to_str().unwrap()]);
    assert!(text.contains("sometimes"), "{text}");
}

#[test]
fn the_system_unit_exposes_little() {
    let root = tempfile::tempdir().unwrap();
    let (places, _) = written(&unit(system()), root.path());
    let path = places.units.join("glim.service");
    let path = path.to_str().unwrap();
    // In tenths: 0 is the safest, 100 a service without any protection.
    let (ok, text) = analyze(&[
        "security",
        "--offline=yes",
        "--threshold=35",
        "--no-pager",
        path,
    ]);
    assert!(ok, "{text}");
}

#[test]
fn installing_twice_keeps_what_is_the_operators() {
    let root = tempfile::tempdir().unwrap();
    let mut unit = unit(system());
    let (places, actions) = written(&unit, root.path());
    let told: Vec<String> = actions.iter().map(Action::to_string).collect();
    assert!(
        told.iter()
            .any(|line| line.ends_with("systemd/system/glim.service")),
        "{told:?}"
    );
    assert_eq!(
        told[told.len() - 2..],
        [
            "ran systemctl daemon-reload",
            "ran systemctl enable --now glim.socket glim.service"
        ]
    );
    let config = places.config.join("glim.toml");
    fs::write(&config, "[serve]\nport = 9\n").unwrap();
    let drop_ins = places.units.join("glim.service.d");
    fs::write(drop_ins.join("override.conf"), "[Service]\nNice=1\n").unwrap();

    unit.flags.clear();
    let (_, actions) = written(&unit, root.path());
    assert!(
        actions.contains(&Action::Keep(config.clone())),
        "{actions:?}"
    );
    assert!(
        !drop_ins.join("flags.conf").exists(),
        "it is not asked for any more"
    );
    assert!(drop_ins.join("override.conf").exists());

    let actions = remove("glim", &system(), &places).unwrap();
    assert_eq!(
        actions[0].to_string(),
        "ran systemctl disable --now glim.socket glim.service"
    );
    for action in &actions {
        if !matches!(action, Action::Systemctl(_)) {
            perform(action).unwrap();
        }
    }
    assert!(!places.units.join("glim.service").exists());
    assert!(drop_ins.join("override.conf").exists() && config.exists());
    let again = remove("glim", &system(), &places).unwrap_err();
    assert!(matches!(again, InstallError::Absent { .. }), "{again}");
}

#[test]
fn a_unit_that_glim_did_not_write_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let places = Places::new(&system(), Path::new("/")).below(root.path());
    fs::create_dir_all(&places.units).unwrap();
    for name in ["glim.service", "glim.socket"] {
        let path = places.units.join(name);
        fs::write(&path, "[Unit]\nDescription=another\n").unwrap();
        let error = install(&unit(system()), &places, false).unwrap_err();
        assert!(
            matches!(&error, InstallError::Foreign(found) if *found == path),
            "{error}"
        );
        fs::remove_file(path).unwrap();
    }
    fs::write(places.units.join("glim.service"), "[Unit]\n").unwrap();
    assert!(matches!(
        remove("glim", &system(), &places),
        Err(InstallError::Foreign(_))
    ));
}

#[test]
fn a_file_that_cannot_be_written_leaves_nothing_behind() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("taken");
    fs::create_dir(&path).unwrap();
    let action = Action::Write {
        path,
        text: "x".to_owned(),
        mode: 0o644,
    };
    assert!(perform(&action).is_err());
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
}
