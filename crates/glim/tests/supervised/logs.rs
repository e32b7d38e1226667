//! What a service writes of itself: for programs, and into systemd's journal.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value as Json;

use crate::glim;
use crate::locks::{Place, Served};

/// A server whose stderr is kept.
struct Logged {
    served: Served,
    place: Place,
}

impl Logged {
    /// `dress` may wrap the command or add to it.
    fn start(args: &[&str], dress: impl FnOnce(Command, &Place) -> Command) -> Self {
        let place = Place::new();
        let mut command = dress(place.without_device(args), &place);
        let stderr = File::create(place.path("stderr")).unwrap();
        let stream = format!("{}:{}", dev(&stderr), stderr.metadata().unwrap().ino());
        let child = command
            .envs(is_for_journal(&command).then_some(("JOURNAL_STREAM", stream)))
            .stderr(stderr)
            .spawn()
            .unwrap();
        let mut served = Served(child, String::new());
        served.listens();
        Self { served, place }
    }

    fn stderr(&self) -> String {
        fs::read_to_string(self.place.path("stderr")).unwrap()
    }

    /// All lines, each of which has to be an object.
    #[track_caller]
    fn lines(&self) -> Vec<Json> {
        let parse = |line: &str| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
        };
        self.stderr().lines().map(parse).collect()
    }

    /// Asks for some tokens under an id.
    fn ask(&self, id: &str) -> String {
        let body = r#"{"prompt": "a", "max_tokens": 3, "ignore_eos": true}"#;
        let mut stream = TcpStream::connect(&self.served.1).unwrap();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: {id}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }
}

fn dev(file: &File) -> u64 {
    file.metadata().unwrap().dev()
}

/// Marks a command whose stderr is to be taken for the journal's.
const FOR_JOURNAL: &str = "GLIM_TEST_JOURNAL";

fn is_for_journal(command: &Command) -> bool {
    command.get_envs().any(|(name, _)| name == FOR_JOURNAL)
}

fn as_it_is(command: Command, _: &Place) -> Command {
    command
}

#[test]
fn each_phase_of_the_start_is_a_line_with_its_duration_and_each_request_one_with_its_numbers() {
    let logged = Logged::start(&["--log-format", "json", "--verify", "full"], as_it_is);
    logged.served.serves();
    assert!(
        logged
            .ask("an-id-of-the-client")
            .starts_with("HTTP/1.1 200")
    );
    let lines = logged.lines();
    let phases: Vec<&str> = lines
        .iter()
        .filter(|line| line["seconds"].is_number())
        .filter_map(|line| line["phase"].as_str())
        .collect();
    let expected = [
        "starting",
        "checks",
        "opening",
        "proof of the file",
        "plan",
        "weights",
        "compile",
        "capture",
        "proof of sense",
        "self-test",
    ];
    assert_eq!(phases, expected);
    let of = |message: &str| -> Vec<&Json> {
        let is_it = |line: &&Json| line["message"] == message;
        lines.iter().filter(is_it).collect()
    };
    assert!(of("ready")[0]["seconds"].is_number());
    let [generation] = of("generation")[..] else {
        panic!("{lines:?}");
    };
    assert_eq!(generation["span"]["request_id"], "an-id-of-the-client");
    assert_eq!(generation["finish_reason"], "length");
    assert_eq!(generation["completion_tokens"], 3);
    for field in [
        "prompt_tokens",
        "queue_ms",
        "ttft_ms",
        "decode_ms",
        "e2e_ms",
    ] {
        assert!(generation[field].is_number(), "{field}: {generation}");
    }
    let [response] = of("response")[..] else {
        panic!("{lines:?}");
    };
    assert_eq!(response["span"]["request_id"], "an-id-of-the-client");
}

/// Alone and as one of two: which rank, in which operation, on what, and where in the program.
#[test]
fn a_panic_in_a_step_is_one_line_and_the_end_with_70() {
    for ranks in ["1", "2"] {
        let mut logged = Logged::start(&["--log-format", "json", "--tp", ranks], as_it_is);
        logged.served.serves();
        fs::write(logged.place.path("slow"), "panic").unwrap();
        assert!(logged.ask("x").starts_with("HTTP/1.1 500"));
        assert_eq!(logged.served.0.wait().unwrap().code(), Some(70));
        let lines = logged.lines();
        let [failed] = lines
            .iter()
            .filter(|line| line["message"] == "a step failed")
            .collect::<Vec<_>>()[..]
        else {
            panic!("{lines:?}");
        };
        assert_eq!(failed["level"], "ERROR");
        assert!(failed["rank"].as_u64().unwrap() < 2, "{failed}");
        for field in ["op", "kind", "plan", "step"] {
            assert!(failed[field].is_string(), "{field}: {failed}");
        }
        let shapes = failed["shapes"].as_str().unwrap();
        assert!(shapes.contains(" -> ") && shapes.contains('['), "{shapes}");
        let error = failed["error"].as_str().unwrap();
        assert!(
            error.contains("a test wants a panic") && error.contains("fault.rs:"),
            "{error}"
        );
        // The end is a line for programs too.
        let last = lines.last().unwrap();
        assert!(last["hint"].as_str().unwrap().contains("please report"));
        assert_eq!(
            (&last["code"], &last["level"]),
            (&70.into(), &"ERROR".into())
        );
    }
}

#[test]
fn a_start_that_fails_says_why_as_an_object() {
    let output = glim()
        .args(["serve", "/nowhere.gguf", "--port", "0", "--device", "cpu"])
        .args(["--log-format", "json"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(66));
    let text = String::from_utf8(output.stderr).unwrap();
    let last: Json = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["kind"], &last["code"]),
        (&"missing_file".into(), &66.into())
    );
    assert!(last["message"].as_str().unwrap().contains("/nowhere.gguf"));
}

/// A journal of the tests' own, at the place where the real one is: the server runs where another `/run` is mounted.
struct Journal(UnixDatagram);

/// Mounts a folder, `$0`, as the journal's, and becomes the rest of the arguments.
const BESIDE: &str = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && mount --bind \"$0\" /run/systemd/journal && exec \"$@\"";

impl Journal {
    fn new(place: &Path) -> Self {
        fs::create_dir(place).unwrap();
        let socket = UnixDatagram::bind(place.join("socket")).unwrap();
        let patience = Some(Duration::from_secs(300));
        socket.set_read_timeout(patience).unwrap();
        Self(socket)
    }

    /// The next entry, by the protocol of systemd.io/JOURNAL_NATIVE_PROTOCOL. Of fields that are there twice, the last.
    fn entry(&self) -> BTreeMap<String, String> {
        let mut buffer = vec![0; 1 << 20];
        let length = self.0.recv(&mut buffer).unwrap();
        let mut rest = &buffer[..length];
        let mut fields = BTreeMap::new();
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line = std::str::from_utf8(&rest[..end]).unwrap();
            rest = &rest[end + 1..];
            let (name, value) = match line.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => {
                    let (length, after) = rest.split_at(8);
                    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
                    let value = String::from_utf8(after[..length].to_vec()).unwrap();
                    assert_eq!(after[length], b'\n');
                    rest = &after[length + 1..];
                    (line, value)
                }
            };
            fields.insert(name.to_owned(), value);
        }
        assert!(rest.is_empty(), "{rest:?}");
        fields
    }

    /// The first entry with a field.
    fn with(&self, name: &str, value: &str) -> BTreeMap<String, String> {
        loop {
            let entry = self.entry();
            if entry.get(name).is_some_and(|found| found == value) {
                return entry;
            }
        }
    }
}

/// How to mount something that nobody else sees, if that is allowed here.
fn unshare() -> Option<&'static [&'static str]> {
    let ways: [&[&str]; 2] = [&["--map-root-user", "--mount"], &["--mount"]];
    let works = |way: &&[&str]| {
        let mut unshare = Command::new("unshare");
        let script = ["sh", "-c", "mount -t tmpfs none /run"];
        let unshare = unshare.args(*way).args(script).stderr(Stdio::null());
        unshare.status().is_ok_and(|status| status.success())
    };
    ways.into_iter().find(works)
}

#[test]
fn where_stderr_goes_to_the_journal_its_own_fields_are_written() {
    let Some(unshare) = unshare() else {
        return println!("skipped: no mounts of one's own are allowed here");
    };
    let mut journal = None;
    let in_journal = |command: Command, place: &Place| -> Command {
        let folder: PathBuf = place.path("journal");
        journal = Some(Journal::new(&folder));
        let mut within = Command::new("unshare");
        within.args(unshare).args(["sh", "-c", BESIDE]).arg(folder);
        within.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => within.env(name, value),
                None => within.env_remove(name),
            };
        }
        within.env(FOR_JOURNAL, "1").stdout(Stdio::piped());
        within
    };
    let logged = Logged::start(&[], in_journal);
    let journal = journal.unwrap();
    let phase = journal.with("PHASE", "weights");
    assert_eq!(phase["PRIORITY"], "6");
    assert_eq!(phase["SYSLOG_IDENTIFIER"], "glim");
    assert!(phase["SECONDS"].parse::<f64>().unwrap() >= 0.0);
    journal.with("MESSAGE", "ready");
    assert!(logged.ask("an-id").starts_with("HTTP/1.1 200"));
    let generation = journal.with("MESSAGE", "generation");
    assert_eq!(generation["REQUEST_ID"], "an-id");
    assert_eq!(generation["FINISH_REASON"], "length");
    assert_eq!(generation["COMPLETION_TOKENS"], "3");
    fs::write(logged.place.path("slow"), "panic").unwrap();
    logged.ask("another-id");
    let failed = journal.with("MESSAGE", "a step failed");
    assert_eq!(
        (failed["PRIORITY"].as_str(), failed["RANK"].as_str()),
        ("3", "0")
    );
    assert!(failed.contains_key("OP") && failed.contains_key("SHAPES"));
    let end = journal.with("CODE", "70");
    assert_eq!(end["PRIORITY"], "3");
    assert_eq!(logged.stderr(), "", "nothing is said twice");
}

/// `JOURNAL_STREAM` is inherited by what is started by hand in a service's shell, whose stderr is another.
#[test]
fn a_stderr_that_is_not_the_journals_gets_lines() {
    let not_its = |mut command: Command, _: &Place| {
        command.env("JOURNAL_STREAM", "1:2");
        command
    };
    let logged = Logged::start(&[], not_its);
    logged.served.serves();
    assert!(logged.stderr().contains("ready"), "{}", logged.stderr());
}
