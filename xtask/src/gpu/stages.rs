//! The stages of `gpu run`, in their order: what is most likely to show a fault first comes first, what is measured last.
//!
//! A step that reaches its limit is ended.

/// A set of steps with one result.
pub(super) struct Stage {
    pub(super) name: &'static str,
    pub(super) order: Order,
    pub(super) steps: &'static [Step],
}

/// How a stage's steps run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// What is measured has the GPU for itself.
    OneByOne,
    /// What is only to be right waits for the host most of the time.
    SideBySide,
}

/// A tool of the machine that watches what kernels do with memory.
pub(super) const SANITIZER: &str = "compute-sanitizer";

/// One process. `MODEL` among the arguments stands for the checkpoint.
pub(super) struct Step {
    pub(super) name: &'static str,
    /// A program of the archive, or (`compute-sanitizer`) of the machine.
    pub(super) program: &'static str,
    pub(super) arguments: &'static [&'static str],
    pub(super) seconds: u64,
}

impl Step {
    /// A file's name that no other step of its stage has.
    pub(super) fn file(&self) -> String {
        let letter = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        format!("step-{}", self.name.chars().map(letter).collect::<String>())
    }
}

const fn step(
    name: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
    seconds: u64,
) -> Step {
    Step {
        name,
        program,
        arguments,
        seconds,
    }
}

/// Tests of the engine on a GPU whose names begin so.
const fn engine(name: &'static str, arguments: &'static [&'static str], seconds: u64) -> Step {
    step(name, "test-glim-engine-cuda", arguments, seconds)
}

const PARITY: &str = "test-glim-cuda-parity";

pub(super) const STAGES: &[Stage] = &[
    Stage {
        name: "parity",
        order: Order::SideBySide,
        steps: &[
            step("fast", PARITY, &["--ignored", "fast_math"], 150),
            step("exact", PARITY, &["--ignored", "exact_math"], 150),
        ],
    },
    Stage {
        name: "tests",
        order: Order::SideBySide,
        steps: &[
            step("draw", "test-glim-cuda-draw", &["--ignored"], 90),
            step("attention", "test-glim-cuda-attention", &["--ignored"], 90),
            step("experts", "test-glim-cuda-experts", &["--ignored"], 90),
            step("fused", "test-glim-cuda-fused", &["--ignored"], 90),
            step("machine", "test-glim-cuda-machine", &["--ignored"], 60),
            step("prefill", "test-glim-cuda-prefill", &["--ignored"], 120),
            step("random", "test-glim-cuda-random", &["--ignored"], 60),
            step("residence", "test-glim-cuda-residence", &["--ignored"], 60),
            step("stamps", "test-glim-cuda-stamps", &["--ignored"], 60),
            step("nccl", "test-glim-cuda-nccl", &["--ignored"], 60),
        ],
    },
    Stage {
        name: "ranks",
        order: Order::OneByOne,
        // Ranks share the GPU and wait for each other: one test at a time, and no other process that takes turns with them.
        steps: &[step(
            "ranks",
            "test-glim-cuda-ranks",
            &["--ignored", "--test-threads=1"],
            120,
        )],
    },
    Stage {
        name: "poison",
        order: Order::OneByOne,
        steps: &[step(
            "run",
            "glim",
            &[
                "run",
                "MODEL",
                "--device",
                "cuda",
                "--poison",
                "--max-tokens",
                "16",
                "--temperature",
                "0",
                "-p",
                "What is 27 + 58?",
            ],
            60,
        )],
    },
    // Against another implementation; graphs against launches one by one, and with poison.
    Stage {
        name: "replay",
        order: Order::SideBySide,
        steps: &[
            engine("exact", &["--ignored", "reference::exact_math"], 120),
            engine("fast", &["--ignored", "reference::fast_math"], 120),
            engine("ahead", &["--ignored", "ahead::"], 60),
        ],
    },
    Stage {
        name: "model",
        order: Order::SideBySide,
        steps: &[
            engine("types", &["--ignored", "--nocapture", "types::"], 120),
            engine("faults", &["--ignored", "--nocapture", "faults::"], 120),
            engine("memory", &["--ignored", "memory::"], 60),
            engine("one rank", &["--ignored", "repeats::one_rank"], 120),
            engine("two ranks", &["--ignored", "repeats::two_ranks"], 120),
        ],
    },
    Stage {
        name: "sanitizer",
        order: Order::SideBySide,
        steps: &[
            sanitizer("memcheck", &SANITIZED_MEMCHECK),
            sanitizer("racecheck", &SANITIZED_RACECHECK),
            sanitizer("initcheck", &SANITIZED_INITCHECK),
        ],
    },
    Stage {
        name: "bench",
        order: Order::OneByOne,
        steps: &[
            step(
                "tiny",
                "glim",
                &["bench", "MODEL", "--device", "cuda", "--json"],
                60,
            ),
            step(
                "glm-5, 4 layers",
                "glim",
                &[
                    "bench", "--shape", "glm-5", "--rank", "0/8", "--layers", "4", "--device",
                    "cuda", "--json",
                ],
                120,
            ),
            step(
                "glm-5",
                "glim",
                &[
                    "bench", "--shape", "glm-5", "--rank", "0/8", "--device", "cuda", "--json",
                ],
                240,
            ),
        ],
    },
];

const fn sanitizer(name: &'static str, arguments: &'static [&'static str]) -> Step {
    step(name, SANITIZER, arguments, 180)
}

/// The tiny model's prompt and some tokens, under one of the sanitizer's tools; `PROGRAMS` stands for the archive's folder.
macro_rules! sanitized {
    ($tool:literal) => {
        [
            "--tool",
            $tool,
            "--error-exitcode",
            "9",
            "--print-limit",
            "20",
            "PROGRAMS/glim",
            "run",
            "MODEL",
            "--device",
            "cuda",
            "--max-tokens",
            "4",
            "--temperature",
            "0",
            "-p",
            "What is 27 + 58?",
        ]
    };
}
static SANITIZED_MEMCHECK: [&str; 17] = sanitized!("memcheck");
static SANITIZED_RACECHECK: [&str; 17] = sanitized!("racecheck");
static SANITIZED_INITCHECK: [&str; 17] = sanitized!("initcheck");
