//! What a service says to systemd: datagrams of `NAME=VALUE` lines (`sd_notify(3)`).
//!
//! The variable `NOTIFY_SOCKET` names the socket; systemd takes messages from the main process only (`NotifyAccess=main`), so a child
//! that inherits the variable can say nothing in our name.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

/// The manager's end.
#[derive(Debug)]
pub struct Notify(UnixDatagram);

impl Notify {
    /// Opens the socket that `NOTIFY_SOCKET` names: a path, or a name in the abstract namespace if it begins with `@`.
    ///
    /// # Errors
    /// If nobody listens there.
    pub fn open(name: &OsStr) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        match name.as_bytes().split_first() {
            Some((b'@', name)) => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
            _ => socket.connect(Path::new(name))?,
        }
        // A manager that does not read must not hold us up.
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Sends assignments in one message. A line break in a value would begin another assignment: it becomes a blank.
    ///
    /// # Errors
    /// If the manager has gone or its queue is full.
    pub fn send(&self, assignments: &[String]) -> io::Result<()> {
        let lines: Vec<String> = assignments
            .iter()
            .map(|line| line.replace(['\n', '\r'], " "))
            .collect();
        self.0.send(lines.join("\n").as_bytes()).map(drop)
    }
}

/// How often the manager wants to hear that all is well: `WATCHDOG_USEC`, if `WATCHDOG_PID` is absent or this process.
pub fn watchdog(usec: Option<&str>, pid: Option<&str>) -> Option<Duration> {
    let is_for_us = pid.is_none_or(|pid| pid.parse() == Ok(std::process::id()));
    let usec: u64 = usec?.parse().ok()?;
    (is_for_us && usec > 0).then(|| Duration::from_micros(usec))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 1024];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_message_reaches_a_path_and_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notify = Notify::open(path.as_os_str()).unwrap();
        let lines = ["READY=1".to_owned(), "STATUS=two\nlines".to_owned()];
        notify.send(&lines).unwrap();
        assert_eq!(received(&manager), "READY=1\nSTATUS=two lines");

        let name = format!("glim-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let notify = Notify::open(format!("@{name}").as_ref()).unwrap();
        notify.send(&["WATCHDOG=1".to_owned()]).unwrap();
        assert_eq!(received(&manager), "WATCHDOG=1");
    }

    #[test]
    fn a_socket_that_nobody_listens_on_is_an_error() {
        assert!(Notify::open("/nonexistent/notify".as_ref()).is_err());
    }

    #[test]
    fn a_watchdog_is_ours_if_it_names_us_or_nobody() {
        let us = std::process::id().to_string();
        let minute = Some(Duration::from_secs(60));
        assert_eq!(watchdog(Some("60000000"), Some(&us)), minute);
        assert_eq!(watchdog(Some("60000000"), None), minute);
        assert_eq!(watchdog(Some("60000000"), Some("1")), None);
        assert_eq!(watchdog(Some("0"), None), None);
        assert_eq!(watchdog(Some("soon"), None), None);
        assert_eq!(watchdog(None, None), None);
    }
}
