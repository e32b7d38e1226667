//! The Compose file: its command line, its port, its health check as a shell runs it, its time to stop.

use std::process::Command;

use serde_json::Value as Json;

use crate::server::Server;
use crate::{MARGIN, keys, number, path, settings, strings, yaml};

const FILE: &str = "deploy/compose.yaml";

fn service(name: &str) -> Json {
    yaml(FILE)["services"][name].clone()
}

/// A duration such as `150s` or `1h`, in seconds.
fn seconds(duration: &Json) -> u64 {
    let text = duration.as_str().unwrap();
    let (number, unit) = text.split_at(text.len() - 1);
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        other => panic!("{other} is no unit"),
    };
    number.parse::<u64>().unwrap() * unit
}

#[test]
fn the_command_line_is_one_that_serve_takes_and_a_drain_has_its_time() {
    let glim = service("glim");
    let folder = tempfile::tempdir().unwrap();
    let keys = keys(&folder);
    let command = strings(&glim["command"]);
    assert_eq!(command[0], "serve");
    // Where the keys lie in the container.
    let secret = glim["secrets"][0]["target"].as_str().unwrap();
    let inside = format!("/run/secrets/{secret}");
    assert!(
        command.iter().any(|word| word.ends_with(&inside)),
        "{command:?}"
    );
    let arguments: Vec<String> = command[1..]
        .iter()
        .map(|word| word.replace(&inside, &keys))
        .collect();
    let effective = settings(&arguments);
    let grace = seconds(&glim["stop_grace_period"]);
    let drain = number(&effective, "drain-timeout");
    assert!(
        grace >= drain + MARGIN,
        "{grace} s for a drain of {drain} s"
    );
    let port = number(&effective, "port");
    let published = glim["ports"][0].as_str().unwrap();
    assert!(published.ends_with(&format!(":{port}")), "{published}");
    let model = effective["model"].as_str().unwrap();
    let mounted = glim["volumes"][0]["target"].as_str().unwrap();
    assert!(model.starts_with(mounted), "{model} is not below {mounted}");
}

#[test]
fn the_health_check_tells_a_server_that_is_ready_from_none() {
    let glim = service("glim");
    let test = strings(&glim["healthcheck"]["test"]);
    assert_eq!(test[0], "CMD");
    let check = |port: &str| {
        // Compose makes one `$` of two.
        let words = test[1..].iter().map(|word| {
            assert!(!word.contains("8000") || word.matches("/8000").count() == 1);
            word.replace("$$", "$")
                .replace("/8000", &format!("/{port}"))
        });
        let words: Vec<String> = words.collect();
        let output = Command::new(&words[0]).args(&words[1..]).output().unwrap();
        output.status.success()
    };
    let server = Server::start(&[]);
    let port = server.address.rsplit_once(':').unwrap().1.to_owned();
    server.wait_ready();
    assert!(check(&port));
    drop(server);
    assert!(!check(&port));
}

#[test]
fn the_image_is_this_version_and_prometheus_finds_the_server() {
    let file = yaml(FILE);
    let image = format!("glim:{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(service("glim")["image"], image);
    assert!(
        path("deploy")
            .join(service("glim")["build"]["context"].as_str().unwrap())
            .exists()
    );
    let build = service("glim")["build"]["dockerfile"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(path(&build).exists(), "{build}");
    let prometheus = yaml("deploy/prometheus/prometheus.yaml");
    let job = &prometheus["scrape_configs"][0];
    assert_eq!(job["job_name"], "glim");
    let target = job["static_configs"][0]["targets"][0].as_str().unwrap();
    let (host, port) = target.split_once(':').unwrap();
    assert!(file["services"][host].is_object(), "{host}");
    assert_eq!(port, settings(&[])["port"].as_str().unwrap());
    // The folder that is mounted has the file that is named.
    let command = strings(&service("prometheus")["command"]);
    let config = command[0].strip_prefix("--config.file=").unwrap();
    let mount = service("prometheus")["volumes"][0]
        .as_str()
        .unwrap()
        .to_owned();
    let (outside, inside) = mount.split_once(':').unwrap();
    let inside = inside.trim_end_matches(":ro");
    let config = config.strip_prefix(inside).unwrap().trim_start_matches('/');
    assert!(
        path("deploy").join(outside).join(config).exists(),
        "{config}"
    );
}
