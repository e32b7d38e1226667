//! Socket activation: a service manager listens, and hands its socket over (`sd_listen_fds(3)`).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use crate::locks::{Place, Served};

/// What a manager does between fork and exec: descriptors from 3 on, and who is to take them. `$0` says how many there are.
const HANDED: &str =
    "exec 3<&0 4<&0 </dev/null; LISTEN_PID=${PID_OF_TESTS:-$$} LISTEN_FDS=$0 exec \"$@\"";

struct Manager {
    place: Place,
    address: SocketAddr,
    socket: TcpListener,
}

impl Manager {
    fn new() -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        Self {
            place: Place::new(),
            address: socket.local_addr().unwrap(),
            socket,
        }
    }

    /// The service, with so many sockets.
    fn command(&self, sockets: &str) -> Command {
        let serve = self.place.without_device(&[]);
        let mut command = Command::new("sh");
        command.args(["-c", HANDED, sockets]);
        command.arg(serve.get_program()).args(serve.get_args());
        for (name, value) in serve.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let socket = OwnedFd::from(self.socket.try_clone().unwrap());
        command.stdin(socket).stdout(Stdio::piped());
        command.stderr(Stdio::null());
        command
    }
}

#[test]
fn who_came_before_the_service_is_answered_by_it() {
    let manager = Manager::new();
    let mut early = TcpStream::connect(manager.address).unwrap();
    let head = "GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    early.write_all(head.as_bytes()).unwrap();
    let served = Served::start(&mut manager.command("1"));
    // The configuration says any free port.
    assert_eq!(served.1, manager.address.to_string());
    let mut answer = String::new();
    early.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    served.serves();

    // A service that has ended leaves the socket to the manager, and the next takes it.
    drop(served);
    let next = Served::start(&mut manager.command("1"));
    assert_eq!(next.1, manager.address.to_string());
    next.serves();
}

#[test]
fn sockets_of_another_process_are_not_taken() {
    let manager = Manager::new();
    let mut command = manager.command("1");
    let served = Served::start(command.env("PID_OF_TESTS", std::process::id().to_string()));
    assert_ne!(served.1, manager.address.to_string());
}

#[test]
fn more_sockets_than_one_are_refused() {
    let output = Manager::new().command("2").output().unwrap();
    assert_eq!(output.status.code(), Some(78));
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("hands over 2 sockets"), "{told}");
}
