//! `glim serve`: what ends it before it serves, and the signals that end it afterwards. What it answers is tested in the crate `server`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::{glim, text};

/// A server on a free port, once it listens.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_glim"))
            .args(["serve", "--json", "--port", "0"])
            .args(match args.contains(&"--verify") {
                true => &[][..],
                false => &["--verify", "none"],
            })
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let told: serde_json::Value = serde_json::from_str(&line).unwrap();
        let address = told["address"].as_str().unwrap().to_owned();
        Self { child, address }
    }

    /// Status line and body of a request without a body.
    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn wait_ready(&self) {
        while !self.get("/ready").starts_with("HTTP/1.1 200") {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    #[cfg(unix)]
    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &id])
                .status()
                .unwrap()
                .success()
        );
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(unix)]
#[test]
fn a_signal_ends_it_in_order_also_while_it_loads() {
    for name in ["TERM", "INT"] {
        let mut served = Served::start(&[]);
        served.wait_ready();
        served.signal(name);
        assert_eq!(served.child.wait().unwrap().code(), Some(0), "{name}");
    }
    // It listens before it loads: this may meet it at any point on the way.
    let mut served = Served::start(&[]);
    served.signal("TERM");
    assert_eq!(served.child.wait().unwrap().code(), Some(0));
}

/// The texts of the proof are longer than some contexts: these are served all the same.
#[test]
fn a_short_context_is_served() {
    let served = Served::start(&["--verify", "full", "--context", "64"]);
    served.wait_ready();
    assert!(served.get("/info").contains("\"digest\":\""));
}

#[test]
fn the_answer_goes_by_the_name_of_the_model() {
    let served = Served::start(&["--served-model-name", "a/b", "--served-model-name", "c"]);
    served.wait_ready();
    let models = served.get("/v1/models");
    assert!(
        models.contains("\"id\":\"a/b\"") && models.contains("\"id\":\"c\""),
        "{models}"
    );
    let served = Served::start(&[]);
    served.wait_ready();
    assert!(served.get("/v1/models").contains("\"id\":\"tiny-glm5\""));
}

#[test]
fn a_port_that_is_taken_is_temporary() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    glim(&["serve", "--port", &port]).fails(75, &["cannot listen on 127.0.0.1:", &port]);
}

#[test]
fn what_cannot_be_served_is_told_before_anything_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys.txt");
    std::fs::write(&keys, "sk-long-enough\nshort\n").unwrap();
    let at = &["serve", "--port", "0", "--log-level", "error"];
    let serve = |args: &[&str]| glim(&[at, args].concat());
    serve(&["--api-key-file", text(&keys)]).fails(78, &["keys.txt", "line 2"]);
    serve(&["--api-key-file", "nowhere.txt"]).fails(66, &["nowhere.txt"]);
    serve(&["--temperature", "3"]).fails(64, &["--temperature", "0 to 2"]);
    serve(&["--cors-origin", "example.org"]).fails(64, &["--cors-origin"]);
    serve(&["nowhere.gguf"]).fails(66, &["nowhere.gguf"]);
    serve(&["--context", "100000000"]).fails(64, &["context"]);
    std::fs::write(dir.path().join("bad.gguf"), "GGUF but no more").unwrap();
    serve(&[text(&dir.path().join("bad.gguf"))]).fails(65, &["bad.gguf"]);
}
