//! A real server on the built-in model, and requests to it by hand.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::glim;

/// A server on a free port; it ends with the value.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
}

impl Server {
    /// Once it listens.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = glim()
            .args(["serve", "--json", "--port", "0", "--verify", "none"])
            .args(["--context", "256", "--threads", "1"])
            .args(arguments)
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

    pub(crate) fn wait_ready(&self) {
        while self.get("/ready").0 != 200 {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Status and body.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.ask(&format!("GET {path} HTTP/1.1\r\n"), "")
    }

    /// Status and body.
    pub(crate) fn post(&self, path: &str, json: &str) -> (u16, String) {
        let length = json.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n"
        );
        self.ask(&head, json)
    }

    fn ask(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let request = format!("{head}host: x\r\nconnection: close\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
