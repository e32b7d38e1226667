//! The text of the systemd unit that runs `glim serve`, of its drop-ins, and of its socket.
//!
//! What each setting is for stands beside it, in the unit itself: who reads it at 3 a.m. should not have to look elsewhere. Sources:
//! `systemd.service(5)`, `systemd.exec(5)`, `systemd.resource-control(5)`. Only what systemd 252 (Debian 12) knows is used; so
//! `RestartSteps=`, which came with 254, is not, and the start limit alone keeps a failing service from starting for ever.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// First line of every file that is written; a file without it is somebody else's, and left alone.
pub const MARK: &str =
    "# Written by `glim service install`: changes belong in a drop-in (systemctl edit).";

/// Exit codes that a restart cannot mend: usage, bad data, missing file, GPU held or absent, bad configuration.
pub const FINAL_EXITS: [u8; 5] = [64, 65, 66, 69, 78];

/// Which manager runs the unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// The system's.
    System {
        /// The user it runs as; `None`: one that systemd makes for as long as it runs.
        user: Option<String>,
    },
    /// A user's own.
    User,
}

/// What a unit is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Its name, without ending.
    pub name: String,
    /// Which manager runs it.
    pub scope: Scope,
    /// The program, by its whole path.
    pub executable: PathBuf,
    /// The configuration file, by its whole path.
    pub config: PathBuf,
    /// A file of variables, which need not be there.
    pub environment: PathBuf,
    /// Where the manager listens for it, if it does.
    pub socket: Option<SocketAddr>,
    /// Options of `serve` that stand in a drop-in.
    pub flags: Vec<String>,
    /// Only the devices of GPUs may be used: another drop-in.
    pub restrict_devices: bool,
}

impl Unit {
    /// The file of the service.
    pub fn service(&self) -> String {
        let mut text = format!("{MARK}\n[Unit]\n");
        let mut line = |line: &str| {
            text.push_str(line);
            text.push('\n');
        };
        line("Description=glim, a model behind HTTP");
        line("Documentation=man:glim-serve(1)");
        if let Scope::System { .. } = self.scope {
            line("Wants=network-online.target nvidia-persistenced.service");
            line("After=network-online.target nvidia-persistenced.service");
        }
        if self.socket.is_some() {
            line(&format!("Requires={}.socket", self.name));
            line(&format!("After={}.socket", self.name));
        }
        line(
            "# Four starts in an hour, then it stays down: `systemctl reset-failed` clears the count.",
        );
        line("StartLimitIntervalSec=1h\nStartLimitBurst=4");

        line("\n[Service]");
        line("# Ready is said once a token was decoded on every rank.");
        line("Type=notify\nNotifyAccess=main");
        line(
            "# No ExecStartPre=: serve makes its checks itself, so that their exit code counts below.",
        );
        line(&format!("ExecStart={}", self.command(&[])));
        line(&format!("EnvironmentFile=-{}", path(&self.environment)));
        line(
            "# A load says again and again that bytes move, and gets more time; one that is stuck ends here.",
        );
        line("TimeoutStartSec=10min");
        line("# More than --drain-timeout; a longer drain asks for more while requests run.");
        line("TimeoutStopSec=150");
        line("# Fed while the engine is idle or its step takes no longer than --step-timeout.");
        line("WatchdogSec=60");
        line("Restart=on-failure\nRestartSec=15");
        line(
            "# Wrong usage, bad data, missing file, GPU held by others, bad configuration: a restart mends none.",
        );
        let finals = FINAL_EXITS.map(|code| code.to_string()).join(" ");
        line(&format!("RestartPreventExitStatus={finals}"));
        line(
            "# The first SIGTERM drains. What is left of the group then is killed: no orphan keeps a GPU.",
        );
        line("KillMode=mixed\nKillSignal=SIGTERM\nFinalKillSignal=SIGKILL\nSendSIGKILL=yes");

        line("\n# Weights in use cannot be given back to the system.");
        line("OOMPolicy=stop");
        line("LimitMEMLOCK=infinity\nLimitNOFILE=1048576\nLimitCORE=0\nTasksMax=infinity");
        if let Scope::System { .. } = self.scope {
            line("OOMScoreAdjust=-500");
        }
        line("# Lock files of GPUs (shared by all units of glim), and compiled kernels.");
        line("RuntimeDirectory=glim\nRuntimeDirectoryMode=0700\nRuntimeDirectoryPreserve=yes");
        line("StateDirectory=glim\nCacheDirectory=glim");
        match self.scope {
            Scope::System { .. } => line("Environment=XDG_CACHE_HOME=/var/cache/glim"),
            Scope::User => line("Environment=XDG_CACHE_HOME=%C/glim"),
        }
        line("# A log that drops lines is of no use when it is needed.");
        line("LogRateLimitIntervalSec=0");

        if let Scope::System { user } = &self.scope {
            match user {
                Some(user) => line(&format!("\nUser={user}")),
                None => line("\nDynamicUser=yes\nUser=glim"),
            }
            line("# Nodes of GPUs are often for these groups.");
            line("SupplementaryGroups=video render");
        }
        line(HARDENING);
        if let Scope::System { .. } = self.scope {
            line(SYSTEM_HARDENING);
        }
        line("\n[Install]");
        match self.scope {
            Scope::System { .. } => line("WantedBy=multi-user.target"),
            Scope::User => line("WantedBy=default.target"),
        }
        text
    }

    /// The file of the socket, if there is one.
    pub fn socket_unit(&self) -> Option<String> {
        let address = self.socket?;
        Some(format!(
            "{MARK}\n[Unit]\nDescription=Socket of glim\n\n[Socket]\n\
             # Connections wait here while the service restarts; while it loads, it answers 503 itself.\n\
             ListenStream={address}\nNoDelay=true\nBacklog=4096\n\n[Install]\nWantedBy=sockets.target\n"
        ))
    }

    /// The drop-ins by name, if any are asked for.
    pub fn drop_ins(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        if !self.flags.is_empty() {
            let command = self.command(&self.flags);
            found.push((
                "flags.conf",
                format!("{MARK}\n[Service]\nExecStart=\nExecStart={command}\n"),
            ));
        }
        if self.restrict_devices {
            found.push(("devices.conf", format!("{MARK}\n{DEVICES}")));
        }
        found
    }

    fn command(&self, flags: &[String]) -> String {
        let mut command = path(&self.executable);
        let _ = write!(command, " serve --config {}", path(&self.config));
        for flag in flags {
            let _ = write!(command, " {}", argument(flag));
        }
        command
    }
}

/// Safe for a process that uses GPUs. Left out since they break it: `MemoryDenyWriteExecute=` (the driver compiles at run time),
/// `PrivateDevices=`, `PrivateUsers=` and `ProtectProc=` (they hide GPUs, and who holds them), `ProcSubset=pid` (the driver reads
/// `/proc/driver/nvidia`), `PrivateNetwork=`.
const HARDENING: &str = "\
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
SystemCallArchitectures=native
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
UMask=0077";

/// What a user's manager may not do.
const SYSTEM_HARDENING: &str = "\
# Empty: no capability is needed.
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
# Weights under a home folder can be read.
ProtectHome=read-only
PrivateTmp=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RemoveIPC=yes
SystemCallFilter=@system-service mbind set_mempolicy get_mempolicy move_pages
SystemCallErrorNumber=EPERM";

/// By the driver's names in /proc/devices, since the major number of nvidia-uvm differs from start to start.
const DEVICES: &str = "\
# Only GPUs. A module that is loaded after the service has started is not seen: load nvidia-uvm before (nvidia-persistenced does).
[Service]
DevicePolicy=closed
DeviceAllow=char-nvidia rw
DeviceAllow=char-nvidia* rw
DeviceAllow=char-infiniband* rw
";

/// A path as a setting takes it.
fn path(path: &Path) -> String {
    argument(&path.to_string_lossy())
}

/// One word of a command line: `%` begins a specifier and `$` a variable, and blanks or quotes end a word.
fn argument(text: &str) -> String {
    let escaped = text.replace('%', "%%").replace('$', "$$");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@+%$*".contains(c);
    match !escaped.is_empty() && escaped.chars().all(is_plain) {
        true => escaped,
        false => format!(
            "\"{}\"",
            escaped
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_command_line_stays_one() {
        for (text, expected) in [
            ("--port=8000", "--port=8000"),
            ("a b", "\"a b\""),
            ("100%", "100%%"),
            ("$HOME", "$$HOME"),
            ("say \"x\\\"", "\"say \\\"x\\\\\\\"\""),
            ("two\nlines", "\"two\\nlines\""),
            ("", "\"\""),
            (";", "\";\""),
        ] {
            assert_eq!(argument(text), expected);
        }
    }
}
