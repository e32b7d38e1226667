//! Work that another library puts into the step's stream, beside our kernels.

use std::fmt;
use std::sync::Arc;

use super::Arg;
use crate::driver::Stream;
use crate::error::CudaError;

/// A call that is repeated in every step, with the same addresses; or captured once.
pub(crate) trait LibraryCall: fmt::Debug + Send + Sync {
    /// Puts it into the stream.
    ///
    /// # Errors
    /// If the library refuses it.
    fn enqueue(&self, addresses: &[u64], stream: &Stream) -> Result<(), CudaError>;
}

/// A call and what it is given.
#[derive(Debug, Clone)]
pub(crate) struct Library {
    pub(crate) call: Arc<dyn LibraryCall>,
    /// Addresses only.
    pub(crate) addresses: Vec<Arg>,
}
