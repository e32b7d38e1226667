//! Faults on demand, for tests of what supervises the process: a step that takes long, or for ever, or panics.
//!
//! Only where debug assertions are on, which releases are built without: there [`around`] changes nothing.

/// Puts faults around backends, if a test asks for some.
#[cfg(not(debug_assertions))]
pub(crate) fn around(
    backends: Vec<Box<dyn glim_plan::Backend>>,
) -> Vec<Box<dyn glim_plan::Backend>> {
    backends
}

#[cfg(debug_assertions)]
pub(crate) use on_demand::around;

#[cfg(debug_assertions)]
mod on_demand {
    use std::path::PathBuf;
    use std::time::{Duration, Instant};

    use glim_plan::{
        Backend, BackendError, Caps, Plan, ReadTarget, StateDecl, StepId, StepInputs, StepResults,
        WeightGroup, WeightSource,
    };

    /// Names a file with the seconds that each step takes longer, or the word `panic`. While it is not there, or empty, steps are as they are.
    const VARIABLE: &str = "GLIM_TEST_SLOW_STEPS";

    /// A backend without its optional abilities, so that all steps go through [`Slow::run`].
    struct Slow {
        backend: Box<dyn Backend>,
        file: PathBuf,
    }

    pub(crate) fn around(backends: Vec<Box<dyn Backend>>) -> Vec<Box<dyn Backend>> {
        let Some(file) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
            return backends;
        };
        let slow = |backend| -> Box<dyn Backend> {
            Box::new(Slow {
                backend,
                file: file.clone(),
            })
        };
        backends.into_iter().map(slow).collect()
    }

    impl Slow {
        fn delay(&self) -> Duration {
            let text = std::fs::read_to_string(&self.file).unwrap_or_default();
            assert!(text.trim() != "panic", "a test wants a panic");
            let seconds = text.trim().parse().unwrap_or(0.0);
            Duration::try_from_secs_f64(seconds).unwrap_or_default()
        }
    }

    impl Backend for Slow {
        fn caps(&self) -> Caps {
            self.backend.caps()
        }

        fn load(
            &mut self,
            groups: &[WeightGroup],
            source: &dyn WeightSource,
        ) -> Result<(), BackendError> {
            self.backend.load(groups, source)
        }

        fn alloc_state(
            &mut self,
            states: &[StateDecl],
            block_size: usize,
            blocks: usize,
            sequence_slots: usize,
        ) -> Result<(), BackendError> {
            self.backend
                .alloc_state(states, block_size, blocks, sequence_slots)
        }

        fn prepare(&mut self, plan: &Plan) -> Result<StepId, BackendError> {
            self.backend.prepare(plan)
        }

        fn run(&mut self, step: StepId, inputs: &StepInputs) -> Result<StepResults, BackendError> {
            let begin = Instant::now();
            // Asked again and again: a test may end what it began.
            while begin.elapsed() < self.delay() {
                std::thread::sleep(Duration::from_millis(10));
            }
            self.backend.run(step, inputs)
        }

        fn read(&self, target: ReadTarget<'_>) -> Result<Vec<u8>, BackendError> {
            self.backend.read(target)
        }
    }
}
