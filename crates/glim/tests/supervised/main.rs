//! `glim serve` under a service manager, and the commands for it: from install to stop, by the unit that `glim service install` writes.
//!
//! The manager is one of the tests' own ([`manager`]): it reads the unit, and keeps to what systemd documents of the settings that
//! matter here. What systemd itself thinks of the unit is tested in the crate `service`.
#![cfg(all(target_os = "linux", debug_assertions))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod activation;
mod checks;
mod commands;
mod holders;
mod life;
mod locks;
mod logs;
mod manager;

use std::path::Path;
use std::process::Command;

/// The built-in model's file, so that these tests need no feature.
const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../assets/tiny-glm5/tiny-glm5-q8_0.gguf"
);

/// `glim` with none of the variables that the tests' own surroundings may have set.
fn glim() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glim"));
    for name in [
        "NOTIFY_SOCKET",
        "WATCHDOG_USEC",
        "WATCHDOG_PID",
        "LISTEN_FDS",
        "LISTEN_PID",
        "JOURNAL_STREAM",
    ] {
        command.env_remove(name);
    }
    command.env("CUDA_VISIBLE_DEVICES", "");
    command
}

/// Writes a configuration that serves the model on any free port, with a few lines more.
fn config(path: &Path, model: &str, more: &str) {
    let text = format!(
        "[serve]\nmodel = {model:?}\nport = 0\nverify = \"none\"\ndevice = \"cpu\"\ncontext = 256\nthreads = 1\n{more}"
    );
    std::fs::write(path, text).unwrap();
}
