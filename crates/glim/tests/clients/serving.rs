//! A running `glim serve` with the built-in model, for one test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use serde_json::Value as Json;

/// Loading takes a second; a busy machine gets more.
const START: Duration = Duration::from_secs(120);
const ASK_EVERY: Duration = Duration::from_millis(50);

/// The server's process; it ends with this value.
pub(super) struct Serving {
    process: Child,
    url: String,
}

impl Serving {
    /// Starts a server on a free port, and waits until it is ready.
    pub(super) fn start() -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_glim"))
            .args(["serve", "--json", "--port", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let said: Json = serde_json::from_str(&line).unwrap();
        let url = format!("http://{}", said["address"].as_str().unwrap());
        let serving = Self { process, url };
        serving.wait_until_it_is_loaded();
        serving
    }

    /// Until then every request is refused with 503.
    fn wait_until_it_is_loaded(&self) {
        let address = self.url.trim_start_matches("http://");
        for _ in 0..START.as_millis() / ASK_EVERY.as_millis() {
            let mut stream = TcpStream::connect(address).unwrap();
            stream
                .write_all(b"GET /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                .unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            if answer.starts_with("HTTP/1.1 200") {
                return;
            }
            thread::sleep(ASK_EVERY);
        }
        panic!("{address} did not become ready");
    }

    /// A client of it.
    pub(super) fn client(&self) -> Client<OpenAIConfig> {
        let config = OpenAIConfig::new()
            .with_api_base(format!("{}/v1", self.url))
            .with_api_key("not needed");
        Client::with_config(config)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
