//! Captured graphs.

use cudarc::driver::sys;

use super::{Gpu, Stream};
use crate::error::CudaError;

/// Launches that were captured once and are replayed with one call.
#[derive(Debug)]
pub(crate) struct Graph {
    gpu: Gpu,
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
    nodes: usize,
}

// SAFETY: the driver's functions may be called from any thread.
unsafe impl Send for Graph {}

impl Graph {
    /// Captures what `body` puts into the stream; nothing of it runs. Thread-local mode: other ranks' threads may call what they like.
    pub(crate) fn capture(
        stream: &Stream,
        body: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Self, CudaError> {
        let gpu = stream.gpu();
        gpu.bind()?;
        gpu.asked();
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        let code = unsafe { sys::cuStreamBeginCapture_v2(stream.handle(), mode) };
        gpu.check("cuStreamBeginCapture", code)?;
        let filled = body();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the capture has begun; it is ended also if the body failed, or the stream would be of no use.
        let code = unsafe { sys::cuStreamEndCapture(stream.handle(), &mut graph) };
        filled?;
        gpu.check("cuStreamEndCapture", code)?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph is alive.
        let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) };
        let mut captured = Self {
            gpu: gpu.clone(),
            graph,
            exec,
            nodes: 0,
        };
        gpu.check("cuGraphInstantiate", code)?;
        // SAFETY: the graph is alive; without room for nodes it writes their number only.
        let code =
            unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut captured.nodes) };
        gpu.check("cuGraphGetNodes", code)?;
        Ok(captured)
    }

    /// Moves what its launches need to the GPU, which otherwise the first launch does.
    pub(crate) fn upload(&self, stream: &Stream) -> Result<(), CudaError> {
        self.gpu.bind()?;
        // SAFETY: both are alive.
        let code = unsafe { sys::cuGraphUpload(self.exec, stream.handle()) };
        self.gpu.check("cuGraphUpload", code)
    }

    /// Nodes that were captured.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes
    }

    /// Puts all of it into a stream.
    pub(crate) fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        self.gpu.bind()?;
        // SAFETY: both are alive.
        let code = unsafe { sys::cuGraphLaunch(self.exec, stream.handle()) };
        self.gpu.check("cuGraphLaunch", code)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: both were made once; a null one is refused without harm.
            unsafe {
                if !self.exec.is_null() {
                    sys::cuGraphExecDestroy(self.exec);
                }
                sys::cuGraphDestroy(self.graph);
            }
        }
    }
}
