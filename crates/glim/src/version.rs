//! Which glim this is: what `--version` prints, and what a report needs so that somebody else can find the same program.

use std::sync::LazyLock;

/// `0.1.0 (0123456789ab 2026-11-30)`: version, commit and its day. `+` behind the commit: with changes; `no commit`: built for
/// development.
pub(crate) const VERSION: &str = env!("GLIM_VERSION");

/// What `--version` prints; the first line is that of `-V`.
pub(crate) fn long() -> &'static str {
    static LONG: LazyLock<String> = LazyLock::new(|| {
        let features = match env!("GLIM_FEATURES") {
            "" => "none",
            features => features,
        };
        format!(
            "{VERSION}\nfeatures  {features}\nkernels   {}\ncompiler  {}\ntarget    {}",
            kernels(),
            env!("GLIM_RUSTC"),
            env!("GLIM_TARGET"),
        )
    });
    &LONG
}

/// Names the sources of the CUDA kernels: binaries with the same name compute the same on a GPU.
pub(crate) fn kernels() -> &'static str {
    #[cfg(feature = "cuda")]
    return glim_cuda::kernels::SOURCES_HASH;
    #[cfg(not(feature = "cuda"))]
    return "none";
}
