//! A running `glim serve` with the built-in model, for one test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use async_openai::Client;
use async_openai::config::OpenAIConfig;

/// Loading takes a second; a busy machine gets more.
const START: Duration = Duration::from_secs(120);

/// The server's process; it ends with this value.
pub(super) struct Serving {
    process: Child,
    url: String,
}

impl Serving {
    /// Starts a server on a free port, and waits until it says where it listens.
    pub(super) fn start() -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_glim"))
            .args(["serve", "--port", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let (said, hear) = mpsc::channel();
        // Reads on to the end: a pipe that nobody empties would stop the server.
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = said.send(line);
            }
        });
        let mut log = Vec::new();
        let url = loop {
            let line = hear
                .recv_timeout(START)
                .unwrap_or_else(|error| panic!("{error}; it said {log:#?}"));
            if let Some((_, rest)) = line.split_once("http://") {
                let end = rest.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(rest.len());
                break format!("http://{}", rest[..end].trim_end_matches('/'));
            }
            log.push(line);
        };
        Self { process, url }
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
