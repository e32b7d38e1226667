//! `glim man` and `glim completions`: that all commands and options are in them, and that a shell takes what it is given.

use std::collections::BTreeSet;
use std::process::Command;

use super::{glim, text};

/// Commands as `--help` shows them.
fn commands() -> Vec<String> {
    let help = glim(&["--help"]).ok();
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let (list, _) = list.split_once("\n\n").unwrap();
    let lines = list.lines().filter(|line| !line.starts_with("   "));
    let names = lines.map(|line| line.split_whitespace().next().unwrap().to_owned());
    let names: Vec<String> = names.collect();
    assert!(names.len() > 15, "{names:?}");
    names
}

#[test]
fn every_command_has_a_page_that_a_formatter_reads() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("made/for/it");
    let told = glim(&["man", text(&folder)]).ok();
    let mut pages = BTreeSet::new();
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        assert!(told.contains(text(&path)), "{told}");
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let page = std::fs::read_to_string(&path).unwrap();
        let title = name.strip_suffix(".1").unwrap();
        assert!(page.contains(&format!(".TH {title} 1 ")), "{name}");
        for section in [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "EXIT STATUS",
            "ENVIRONMENT",
        ] {
            assert!(
                page.contains(&format!("\n.SH \"{section}\"\n"))
                    || page.contains(&format!("\n.SH {section}\n")),
                "{name} has no {section}"
            );
        }
        // What stands below the options of --help is there once, and examples are not run together.
        assert_eq!(page.matches("Exit codes").count(), 0, "{name}");
        assert!(page.is_ascii(), "{name}");
        pages.insert(name);
    }
    let mut expected: BTreeSet<String> = commands().iter().map(|c| format!("glim-{c}.1")).collect();
    expected.insert("glim.1".to_owned());
    for command in ["install", "print", "status", "remove"] {
        expected.insert(format!("glim-service-{command}.1"));
    }
    assert_eq!(pages, expected);
    // The unit leads to this one.
    let serve = std::fs::read_to_string(folder.join("glim-serve.1")).unwrap();
    assert!(serve.contains("\\-\\-max\\-num\\-seqs") && serve.contains(".SH EXAMPLES\n.nf\n"));
}

#[test]
fn pages_go_nowhere_where_nobody_may_write() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let below = file.path().join("man");
    glim(&["man", text(&below)]).fails(75, &[text(&below), "cannot be written"]);
    glim(&["man"]).fails(64, &["<FOLDER>"]);
}

/// What bash offers for the last word of a command line.
fn offers(line: &[&str]) -> BTreeSet<String> {
    let script = glim(&["completions", "bash"]).ok();
    let words: Vec<String> = line.iter().map(|word| format!("'{word}'")).collect();
    let last = line.len() - 1;
    let ask = format!(
        "{script}\nCOMP_WORDS=({}); COMP_CWORD={last}; _glim glim '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.join(" "),
        line[last],
        line[last - 1],
    );
    let output = Command::new("bash").args(["-c", &ask]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{stderr}");
    let offers = String::from_utf8(output.stdout).unwrap();
    offers.lines().map(str::to_owned).collect()
}

#[test]
#[cfg(unix)]
fn bash_completes_commands_options_and_values() {
    let set =
        |words: &[&str]| -> BTreeSet<String> { words.iter().map(|w| (*w).to_owned()).collect() };
    assert_eq!(offers(&["glim", "ser"]), set(&["serve", "service"]));
    assert_eq!(
        offers(&["glim", "serve", "--max-n"]),
        set(&["--max-num-seqs"])
    );
    assert_eq!(
        offers(&["glim", "run", "--color", "a"]),
        set(&["auto", "always"])
    );
    let all = offers(&["glim", ""]);
    for command in commands() {
        assert!(all.contains(&command), "{command}");
    }
    // What --help hides is not offered.
    assert!(!all.contains("doctor-probe"), "{all:?}");
}

#[test]
fn scripts_are_there_for_each_shell_and_in_an_object() {
    for shell in ["bash", "zsh", "fish"] {
        let script = glim(&["completions", shell]).ok();
        assert!(script.contains("max-num-seqs"), "{shell}");
        let json = glim(&["completions", shell, "--json"]).json();
        assert_eq!(json["script"], script, "{shell}");
    }
    glim(&["completions", "csh"]).fails(64, &["csh"]);
}
