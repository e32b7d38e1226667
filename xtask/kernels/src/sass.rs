//! Whether weights are asked for before the wait for the previous kernel, in the machine code.
//!
//! Under programmatic dependent launch a kernel begins while its predecessor runs. What it gains is the time to have its first
//! weights under way when `griddepcontrol.wait` (SASS: `ACQBULK`) returns. The compiler may move ordinary loads below the wait where
//! that saves a register, which costs 20–30 % of a decode kernel and nobody sees it in the source. So kernels that promise it by a
//! line `// prefetches: NAME` are disassembled: a load of weights must come before the wait.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::build::{Built, on_all_cores};
use crate::{named, sources};

/// What asks for weights: relaxed loads (`load16` and its kin), asynchronous and bulk copies to shared memory.
const LOADS: &[&str] = &["LDG", "LD.E", "LDGSTS", "UBLKCP", "UTMALDG"];

/// The wait for the previous kernel.
const WAIT: &str = "ACQBULK";

/// Says of each kernel that should prefetch and does not, in which unit.
pub(crate) fn check(built: &[Built], root: &Path, nvdisasm: &Path) -> Result<Vec<String>> {
    let mut promises: Vec<(&Built, Vec<String>)> = Vec::new();
    for (file, text) in sources(root)? {
        let kernels: Vec<String> = named(&text, "prefetches")
            .into_iter()
            .map(str::to_owned)
            .collect();
        // Older ones have no wait.
        let of_file = |one: &&Built| one.unit.file == file && waits(&one.arch);
        if !kernels.is_empty() {
            let built = built.iter().filter(of_file);
            promises.extend(built.map(|one| (one, kernels.clone())));
        }
    }
    let looked = on_all_cores(&promises, |(one, kernels)| -> Result<Vec<String>> {
        let sass =
            disassemble(one, nvdisasm).with_context(|| format!("{} for {}", one.unit, one.arch))?;
        let broken = kernels.iter().filter_map(|kernel| {
            let reason = prefetches(&sass, kernel).err()?;
            Some(format!(
                "{kernel} of {} on {}: {reason}",
                one.unit, one.arch
            ))
        });
        Ok(broken.collect())
    });
    let checked: usize = promises.iter().map(|(_, kernels)| kernels.len()).sum();
    let problems: Vec<Vec<String>> = looked.into_iter().collect::<Result<_>>()?;
    println!("{checked} kernels load weights before they wait, as they promise");
    Ok(problems.concat())
}

/// Whether the architecture has programmatic dependent launch: from 9.0 on.
fn waits(arch: &str) -> bool {
    let digits: String = arch.chars().filter(char::is_ascii_digit).collect();
    digits.parse::<u32>().is_ok_and(|number| number >= 90)
}

fn disassemble(one: &Built, nvdisasm: &Path) -> Result<String> {
    let file = std::env::temp_dir().join(format!("glim-{}-{}", std::process::id(), one.name));
    std::fs::write(&file, &one.cubin)
        .with_context(|| format!("{} was not written", file.display()))?;
    let output = Command::new(nvdisasm).arg("-c").arg(&file).output();
    // Nobody needs it any more, whatever happened.
    let _ = std::fs::remove_file(&file);
    let output = output.with_context(|| {
        format!(
            "{} did not start; the package nvidia-cuda-nvdisasm of PyPI has it",
            nvdisasm.display()
        )
    })?;
    if !output.status.success() {
        bail!(
            "{} failed: {}",
            nvdisasm.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a load comes before the wait in a kernel's code; an error says what comes.
fn prefetches(sass: &str, kernel: &str) -> Result<(), String> {
    let label = format!(".text.{kernel}:");
    let mut lines = sass
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != label);
    if lines.next().is_none() {
        return Err("the code has no such kernel".into());
    }
    let mut waits = false;
    for line in lines.take_while(|line| !line.starts_with(".section")) {
        let Some(instruction) = line.split("*/").nth(1) else {
            continue;
        };
        // A guard like `@!P0` may stand in front.
        let name = instruction
            .split_whitespace()
            .find(|word| !word.starts_with('@'))
            .unwrap_or_default();
        if name.starts_with(WAIT) {
            waits = true;
            break;
        }
        // Ordinary loads of arguments come through constant memory; an ordinary global load is no promise of anything but counts,
        // since nothing but weights may be read here.
        if LOADS.iter().any(|load| name.starts_with(load)) {
            return Ok(());
        }
    }
    match waits {
        true => Err(
            "its loads have moved below the wait for the previous kernel: use load16 and its kin"
                .into(),
        ),
        false => Err("it never waits for the previous kernel".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SASS: &str = "\
\t.section\t.text.good,\"ax\",@progbits
.text.good:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0050*/              @!P0 LDG.E.NA.STRONG.GPU R4, desc[UR8][R2.64] ;
        /*0070*/                   ACQBULK ;
        /*0090*/                   PREEXIT ;
\t.section\t.text.late,\"ax\",@progbits
.text.late:
        /*0030*/                   ACQBULK ;
        /*0050*/                   LDG.E.128 R4, desc[UR8][R2.64] ;
\t.section\t.text.never,\"ax\",@progbits
.text.never:
        /*0030*/                   EXIT ;
\t.section\t.text.ring,\"ax\",@progbits
.text.ring:
        /*0030*/                   UBLKCP.S.G [UR4], [UR6], UR8 ;
        /*0050*/                   ACQBULK ;
";

    #[test]
    fn a_load_must_come_before_the_wait() {
        assert_eq!(prefetches(SASS, "good"), Ok(()));
        assert_eq!(prefetches(SASS, "ring"), Ok(()));
        let reason = |kernel| prefetches(SASS, kernel).err().unwrap_or_default();
        assert!(reason("late").starts_with("its loads have moved below"));
        assert!(reason("never").starts_with("it never waits"));
        assert!(reason("other").starts_with("the code has no such kernel"));
    }

    #[test]
    fn older_generations_have_no_wait() {
        assert!(waits("sm_90a") && waits("sm_120a"));
        assert!(!waits("sm_80") && !waits("sm_89"));
    }
}
