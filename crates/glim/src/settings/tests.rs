//! Which place wins, what is refused, and that no option is forgotten.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

/// Values that options without a default take. An option that is neither here nor has a default fails the test that needs it.
const SAMPLES: &[(&str, &str)] = &[
    ("api-key-file", "keys.txt"),
    ("cache-tokens", "4096"),
    ("config", ""),
    ("context", "2048"),
    ("cors-origin", "*"),
    ("kv-events", "tcp://*:5557"),
    ("kv-events-replay", "tcp://*:5558"),
    ("log-level", "warn"),
    ("math", "exact"),
    ("max-tokens", "100"),
    ("memory", "96G"),
    ("min-p", "0.1"),
    ("model", "-odd.gguf"),
    ("otlp-endpoint", "http://localhost:4318"),
    ("pre", "glm4"),
    ("served-model-name", "a"),
    ("temperature", "0.5"),
    ("template", "t.jinja"),
    ("threads", "2"),
    ("top-k", "5"),
    ("top-p", "0.5"),
    ("tp", "2"),
];

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn parse(args: &[&str], environment: &[(&str, &str)]) -> Result<Parsed, Refused> {
    let args = ["glim"].iter().chain(args).map(OsString::from).collect();
    let environment = environment.iter();
    parse_from(
        args,
        environment
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
    )
}

/// The value of one option, and the word for where it comes from.
fn found(parsed: &Parsed, key: &str) -> (String, &'static str) {
    let setting = parsed.settings.iter().find(|setting| setting.key == key);
    let setting = setting.unwrap();
    let from = match &setting.origin {
        Origin::Flag(_) => "flag",
        Origin::Environment(_) => "environment",
        Origin::File(_) => "file",
        Origin::Default => "default",
    };
    (setting.values.join(" "), from)
}

#[track_caller]
fn refused(args: &[&str], environment: &[(&str, &str)], words: &[&str]) {
    let Err(Refused::Settings(failure)) = parse(args, environment) else {
        panic!("not refused for its settings");
    };
    assert_eq!(failure.exit().code(), 78, "{failure:?}");
    let told = failure.to_json().to_string();
    for word in words {
        assert!(told.contains(word), "`{word}` is not in {told}");
    }
}

#[test]
fn a_flag_wins_over_the_environment_and_that_over_the_file() {
    let file = file("[serve]\nport = 1\nmax-queue = 2\ncontext = 512\nno-web-page = true\n");
    let config = file.path().to_str().unwrap();
    let args = ["serve", "--config", config, "--port", "3"];
    let environment = [
        ("GLIM_SERVE_PORT", "4"),
        ("GLIM_SERVE_MAX_QUEUE", "5"),
        ("GLIM_SERVE_NO_WEB_PAGE", "no"),
        ("GLIM_SERVE_TOP_K", ""),
        ("GLIM_SERVER", "is none of ours"),
    ];
    let parsed = parse(&args, &environment).unwrap();
    assert_eq!(found(&parsed, "port"), ("3".into(), "flag"));
    assert_eq!(found(&parsed, "max-queue"), ("5".into(), "environment"));
    assert_eq!(found(&parsed, "context"), ("512".into(), "file"));
    assert_eq!(
        found(&parsed, "no-web-page"),
        ("false".into(), "environment")
    );
    assert_eq!(found(&parsed, "host"), ("127.0.0.1".into(), "default"));
    assert_eq!(found(&parsed, "top-k"), (String::new(), "default"));
}

#[test]
fn every_option_of_serve_can_stand_in_the_file_and_in_the_environment() {
    let mut command = Cli::command();
    command.build();
    let options = options(&command, "serve");
    assert!(options.len() > 40, "{}", options.len());
    let sample = |opt: &Opt<'_>| {
        let default = || {
            let values = opt.arg.get_default_values();
            values
                .first()
                .map(|value| value.to_str().unwrap().to_owned())
        };
        let own = SAMPLES.iter().find(|(key, _)| *key == opt.key);
        match own {
            _ if opt.is_switch() => "true".to_owned(),
            Some((_, value)) => (*value).to_owned(),
            None => default().unwrap_or_else(|| panic!("{} has no sample", opt.key)),
        }
    };
    let others = || options.iter().filter(|opt| opt.key != CONFIG);
    let text: String = others()
        .map(|opt| match opt.is_switch() {
            true => format!("{} = true\n", opt.key),
            false => format!("{} = {:?}\n", opt.key, sample(opt)),
        })
        .collect();
    let file = file(&format!("[serve]\n{text}"));
    let parsed = parse(&["serve", "--config", file.path().to_str().unwrap()], &[]).unwrap();
    let environment: Vec<_> = others()
        .map(|opt| (opt.variable.as_str().to_owned(), sample(opt)))
        .collect();
    let environment: Vec<_> = environment
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let by_environment = parse(&["serve"], &environment).unwrap();
    for opt in others() {
        assert_eq!(found(&parsed, &opt.key), (sample(opt), "file"));
        // What is empty counts as not set.
        let (value, from) = found(&by_environment, &opt.key);
        let expected = if sample(opt).is_empty() {
            "default"
        } else {
            "environment"
        };
        assert_eq!((value, from), (sample(opt), expected), "{}", opt.key);
    }
}

#[test]
fn lists_are_arrays_in_the_file_and_have_commas_in_the_environment() {
    let file = file("[serve]\nserved-model-name = [\"a\", \"b\"]\n");
    let config = file.path().to_str().unwrap();
    let parsed = parse(&["serve", "--config", config], &[]).unwrap();
    assert_eq!(found(&parsed, "served-model-name").0, "a b");
    let parsed = parse(
        &["serve"],
        &[("GLIM_SERVE_CORS_ORIGIN", "http://a,http://b")],
    )
    .unwrap();
    assert_eq!(found(&parsed, "cors-origin").0, "http://a http://b");
}

#[test]
fn what_an_option_needs_may_stand_elsewhere() {
    let args = ["serve", "--kv-events-replay", "tcp://*:5558"];
    let endpoint = [("GLIM_SERVE_KV_EVENTS", "tcp://*:5557")];
    parse(&args, &endpoint).unwrap();
    let Err(Refused::CommandLine(error)) = parse(&args, &[]) else {
        panic!("the endpoint is missing");
    };
    assert_eq!(error.kind(), ErrorKind::MissingRequiredArgument);
}

#[test]
fn a_key_that_is_no_option_is_refused_with_what_was_meant() {
    let with = |text: &str, words: &[&str]| {
        let file = file(text);
        refused(
            &["serve", "--config", file.path().to_str().unwrap()],
            &[],
            words,
        );
    };
    with(
        "[serve]\n# a\nmax_num_seqs = 4\n",
        &[":3: ", "did you mean max-num-seqs?"],
    );
    with("[serve]\nprot = 4\n", &[":2: ", "did you mean port?"]);
    with("[serve]\nxyzzy = 4\n", &["xyzzy", "glim config"]);
    with("port = 4\n", &[":1: ", "under [serve]"]);
    with("serve = 4\n", &["[serve]"]);
    with("[serve]\nconfig = \"a\"\n", &["config"]);
    with("[serve]\nport = \n", &[":2: is not TOML"]);
    with(
        "[serve]\nport = \"a\"\n",
        &[":2: ", "invalid value", "--port"],
    );
    with("[serve]\nport = [1, 2]\n", &[":2: ", "one value"]);
    with("[serve]\nport = 1979-05-27\n", &[":2: ", "expected a text"]);
    with("[serve]\nno-web-page = \"maybe\"\n", &["true or false"]);
    refused(
        &["serve"],
        &[("GLIM_SERVE_PROT", "1")],
        &["did you mean GLIM_SERVE_PORT?"],
    );
    // Kubernetes sets this in every pod beside a Service that is called glim-serve.
    refused(
        &["serve", "--port", "1"],
        &[("GLIM_SERVE_PORT", "tcp://10.0.0.1:80")],
        &["GLIM_SERVE_PORT: ", "--port"],
    );
}

#[test]
fn a_file_that_is_not_there_is_missing() {
    let Err(Refused::Settings(failure)) = parse(&["serve", "--config", "nowhere.toml"], &[]) else {
        panic!("not refused");
    };
    assert_eq!(failure.exit().code(), 66);
}

#[test]
fn other_commands_have_no_layers() {
    let parsed = parse(&["run", "-p", "x"], &[("GLIM_SERVE_PROT", "1")]).unwrap();
    assert!(parsed.settings.is_empty());
}
