//! The manifests for Kubernetes: the configuration is one that serve takes, probes are routes of a server, and a pod has the time to drain.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use crate::container;
use crate::server::Server;
use crate::{MARGIN, keys, number, path, read, settings, strings, yaml};

const FOLDER: &str = "deploy/kubernetes";

fn manifest(name: &str) -> Json {
    yaml(&format!("{FOLDER}/{name}"))
}

fn pod() -> Json {
    manifest("deployment.yaml")["spec"]["template"]["spec"].clone()
}

fn container() -> Json {
    pod()["containers"][0].clone()
}

/// Where a volume is mounted.
fn mount(volume: &str) -> String {
    let container = container();
    let mounts = container["volumeMounts"].as_array().unwrap();
    let mount = mounts.iter().find(|mount| mount["name"] == volume);
    let mount = mount.unwrap_or_else(|| panic!("{volume} is not mounted"));
    mount["mountPath"].as_str().unwrap().to_owned()
}

/// Options of the pod, with its files where they are here.
fn effective() -> serde_json::Map<String, Json> {
    let folder = tempfile::tempdir().unwrap();
    let keys = keys(&folder);
    let config = read(&format!("{FOLDER}/glim.toml"));
    let inside = format!("{}/keys", mount("keys"));
    assert!(config.contains(&inside), "{inside}");
    let here = folder.path().join("glim.toml");
    std::fs::write(&here, config.replace(&inside, &keys)).unwrap();
    let arguments = strings(&container()["args"]);
    assert_eq!(arguments[0], "serve");
    let inside = format!("{}/glim.toml", mount("config"));
    assert!(arguments.contains(&inside), "{arguments:?}");
    let arguments: Vec<String> = arguments[1..]
        .iter()
        .map(|word| word.replace(&inside, here.to_str().unwrap()))
        .collect();
    settings(&arguments)
}

#[test]
fn serve_takes_the_configuration_and_listens_where_the_pod_says() {
    let effective = effective();
    assert_eq!(effective["host"], "0.0.0.0");
    let port = number(&effective, "port");
    assert_eq!(container()["ports"][0]["containerPort"], port);
    let annotations = &manifest("deployment.yaml")["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(annotations["prometheus.io/port"], port.to_string());
    let model = effective["model"].as_str().unwrap();
    assert!(model.starts_with(&mount("models")), "{model}");
}

#[test]
fn probes_are_answered_by_a_server_without_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let keys = keys(&folder);
    let server = Server::start(&["--api-key-file", &keys]);
    server.wait_ready();
    assert_eq!(server.get("/v1/models").0, 401);
    let container = container();
    let mut paths = BTreeSet::new();
    for (probe, alias_of) in [
        ("startupProbe", "/startup"),
        ("livenessProbe", "/health"),
        ("readinessProbe", "/ready"),
    ] {
        let get = &container[probe]["httpGet"];
        assert_eq!(get["port"], container["ports"][0]["name"], "{probe}");
        let path = get["path"].as_str().unwrap();
        let (status, body) = server.get(path);
        assert_eq!(status, 200, "{probe} {path}: {body}");
        // What it asks for is what it is for: other paths are answered with 200 as well.
        let aliases = [
            alias_of.to_owned(),
            alias_of.replace("health", "live") + "z",
        ];
        assert!(aliases.contains(&path.to_owned()), "{probe} asks {path}");
        paths.insert(path.to_owned());
    }
    assert_eq!(paths.len(), 3);
    let annotations = &manifest("deployment.yaml")["spec"]["template"]["metadata"]["annotations"];
    let metrics = annotations["prometheus.io/path"].as_str().unwrap();
    assert!(server.get(metrics).1.contains("# TYPE vllm:"));
}

#[test]
fn a_pod_has_the_time_to_drain_and_to_load() {
    let hook = strings(&container()["lifecycle"]["preStop"]["exec"]["command"]);
    assert_eq!(hook[0], "sleep");
    let sleep: u64 = hook[1].parse().unwrap();
    let drain = number(&effective(), "drain-timeout");
    let grace = pod()["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(
        grace >= sleep + drain + MARGIN,
        "{grace} < {sleep} + {drain}"
    );
    let startup = &container()["startupProbe"];
    let seconds = |name: &str| startup[name].as_u64().unwrap();
    let load = seconds("periodSeconds") * seconds("failureThreshold");
    let deadline = manifest("deployment.yaml")["spec"]["progressDeadlineSeconds"]
        .as_u64()
        .unwrap();
    assert!(deadline > load, "{deadline} s for a load of {load} s");
}

#[test]
fn the_pod_is_nobody_and_writes_only_where_it_may() {
    let user = pod()["securityContext"]["runAsUser"].as_u64().unwrap();
    assert_eq!(container::all("USER"), [format!("{user}:{user}")]);
    let security = &container()["securityContext"];
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(strings(&security["capabilities"]["drop"]), ["ALL"]);
    let cache = container::variables()
        .into_iter()
        .find(|(name, _)| name == "XDG_CACHE_HOME");
    assert_eq!(mount("cache"), cache.unwrap().1);
    assert_eq!(mount("tmp"), "/tmp");
    assert_eq!(container()["resources"]["limits"]["nvidia.com/gpu"], 1);
}

#[test]
fn names_lead_from_one_manifest_to_the_other() {
    let kustomization = manifest("kustomization.yaml");
    let listed: BTreeSet<String> = strings(&kustomization["resources"]).into_iter().collect();
    let files = path(FOLDER).read_dir().unwrap();
    let names = files.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let there: BTreeSet<String> = names
        .filter(|name| name.ends_with(".yaml") && name != "kustomization.yaml")
        .collect();
    assert_eq!(listed, there);
    let image = &kustomization["images"][0];
    assert_eq!(image["name"], container()["image"]);
    assert_eq!(image["newTag"], env!("CARGO_PKG_VERSION"));

    let deployment = manifest("deployment.yaml");
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&deployment["spec"]["selector"]["matchLabels"], labels);
    let service = manifest("service.yaml");
    assert_eq!(&service["spec"]["selector"], labels);
    assert_eq!(
        service["spec"]["ports"][0]["targetPort"],
        container()["ports"][0]["name"]
    );
    // Its variables would look like options.
    assert_ne!(service["metadata"]["name"], "glim-serve");

    let pod = pod();
    let volume = |name: &str| {
        let volumes = pod["volumes"].as_array().unwrap();
        volumes
            .iter()
            .find(|volume| volume["name"] == name)
            .unwrap()
            .clone()
    };
    let claim = &volume("models")["persistentVolumeClaim"]["claimName"];
    assert_eq!(*claim, manifest("models.yaml")["metadata"]["name"]);
    let generated = &kustomization["configMapGenerator"][0];
    assert_eq!(volume("config")["configMap"]["name"], generated["name"]);
    for file in strings(&generated["files"]) {
        assert!(path(FOLDER).join(&file).exists(), "{file}");
    }
    let text = read(&format!("{FOLDER}/kustomization.yaml"));
    let secret = volume("keys")["secret"]["secretName"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        text.contains(&format!("secret generic {secret}")),
        "{secret}"
    );
}
