// Streams, events, capture and graphs.
//
// A stream does its work at once, in the thread that brings it. A captured stream writes it into a graph instead, which repeats it in
// the order of its recording. The rules of capture are the driver's: what may not be captured fails and spoils the capture.
#include "state.h"

#include <cstring>

namespace {

// Captures that are going on; each belongs to the thread that began it.
std::vector<Capture*>& captures() {
    static auto* all = new std::vector<Capture*>;
    return *all;
}
uint64_t thread_number() {
    static uint64_t threads = 0;
    thread_local uint64_t mine = 0;
    if (!mine) {
        Locked lock(state_lock);
        mine = ++threads;
    }
    return mine;
}
enum { GLOBAL, THREAD_LOCAL, RELAXED };

void drop(Capture* capture) {
    for (size_t i = 0; i < captures().size(); i++) {
        if (captures()[i] == capture) captures().erase(captures().begin() + long(i));
    }
    for (Stream* stream : capture->streams) stream->capture = nullptr;
    for (const void* event : Object<Event>::live()) {
        Event* e = static_cast<Event*>(static_cast<Object<Event>*>(const_cast<void*>(event)));
        if (e->capture == capture) e->capture = nullptr;
    }
    delete capture;
}

CUresult record(Stream* stream, Work work) {
    Capture* capture = stream->capture;
    if (capture->invalid) return CUDA_STREAM_CAPTURE_INVALIDATED;
    capture->graph->nodes.push_back(new Node{std::move(work)});
    if (stream != capture->origin) capture->unjoined.insert(stream);
    return CUDA_SUCCESS;
}

CUresult run(const Work& work) {
    return std::visit([](const auto& piece) { return piece.run(); }, work);
}

}  // namespace

CUresult refuse_in_capture() {
    Locked lock(state_lock);
    for (Capture* capture : captures()) {
        const bool mine = capture->thread == thread_number();
        if ((mine && capture->mode != RELAXED) || (!mine && capture->mode == GLOBAL)) {
            capture->invalid = true;
            return CUDA_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return CUDA_SUCCESS;
}

CUresult resolve_stream(CUstream handle, Stream** stream) {
    Context* context;
    TRY(current_context(&context));
    // Null, or the legacy and the per-thread default stream.
    if (reinterpret_cast<uintptr_t>(handle) <= 2) {
        *stream = context->default_stream;
        return CUDA_SUCCESS;
    }
    if (!is_live(handle)) return CUDA_INVALID_HANDLE;
    *stream = handle;
    return CUDA_SUCCESS;
}

CUresult enqueue(CUstream handle, Work work) {
    Stream* stream;
    TRY(resolve_stream(handle, &stream));
    if (stream->capture) {
        Locked lock(state_lock);
        return record(stream, std::move(work));
    }
    if (stream == stream->context->default_stream) {
        Locked lock(state_lock);
        for (Capture* capture : captures()) {
            if (!capture->origin->non_blocking && capture->origin->context == stream->context && capture->mode != RELAXED) {
                capture->invalid = true;
                return CUDA_STREAM_CAPTURE_IMPLICIT;
            }
        }
    }
    std::lock_guard<std::recursive_mutex> in_order(stream->running);
    return run(work);
}

// ---- streams -------------------------------------------------------------------------------------------------------------------------

API CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
    Context* context;
    TRY(current_context(&context));
    if (flags > 1) return CUDA_INVALID_VALUE;
    *stream = new Stream;
    (*stream)->context = context;
    (*stream)->non_blocking = flags == 1;
    (*stream)->priority = priority;
    return CUDA_SUCCESS;
}
API CUresult cuStreamCreate(CUstream* stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }
API CUresult cuStreamDestroy_v2(CUstream stream) {
    if (!is_live(stream)) return CUDA_INVALID_HANDLE;
    Locked lock(state_lock);
    if (stream->capture) {
        Graph* graph = stream->capture->graph;
        drop(stream->capture);
        delete graph;
    }
    delete stream;
    return CUDA_SUCCESS;
}
// Waiting for a stream that only records would be waiting for ever.
static CUresult wait(CUstream handle) {
    Stream* stream;
    TRY(resolve_stream(handle, &stream));
    if (stream->capture) {
        stream->capture->invalid = true;
        return CUDA_STREAM_CAPTURE_UNSUPPORTED;
    }
    std::lock_guard<std::recursive_mutex> done(stream->running);
    return CUDA_SUCCESS;
}
API CUresult cuStreamSynchronize(CUstream stream) { return wait(stream); }
API CUresult cuStreamQuery(CUstream stream) { return wait(stream); }
API CUresult cuStreamGetPriority(CUstream handle, int* priority) {
    Stream* stream;
    TRY(resolve_stream(handle, &stream));
    *priority = stream->priority;
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
    Stream* stream;
    TRY(resolve_stream(handle, &stream));
    *flags = stream->non_blocking;
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
    Stream* stream;
    TRY(resolve_stream(handle, &stream));
    *context = stream->context;
    return CUDA_SUCCESS;
}
API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
    if (!function) return CUDA_INVALID_VALUE;
    return enqueue(stream, HostCall{function, data});
}
CUresult HostCall::run() const {
    function(data);
    return CUDA_SUCCESS;
}

// ---- events --------------------------------------------------------------------------------------------------------------------------

API CUresult cuEventCreate(CUevent* event, unsigned flags) {
    Context* context;
    TRY(current_context(&context));
    // 1 blocking synchronisation, 2 no timing, 4 between processes.
    if (flags > 7) return CUDA_INVALID_VALUE;
    *event = new Event;
    (*event)->context = context;
    (*event)->timed = !(flags & 2);
    return CUDA_SUCCESS;
}
API CUresult cuEventDestroy_v2(CUevent event) {
    if (!is_live(event)) return CUDA_INVALID_HANDLE;
    Locked lock(state_lock);
    delete event;
    return CUDA_SUCCESS;
}
CUresult Record::run() const {
    if (!is_live(event)) return CUDA_INVALID_HANDLE;
    event->recorded = true;
    event->capture = nullptr;
    event->time = std::chrono::steady_clock::now();
    return CUDA_SUCCESS;
}
API CUresult cuEventRecord(CUevent event, CUstream handle) {
    Stream* stream;
    TRY(resolve_stream(handle, &stream));
    if (!is_live(event)) return CUDA_INVALID_HANDLE;
    if (event->context != stream->context) return CUDA_INVALID_HANDLE;
    if (stream->capture) {
        // A mark in the capture, and no node: nobody outside may ask for it.
        Locked lock(state_lock);
        if (stream->capture->invalid) return CUDA_STREAM_CAPTURE_INVALIDATED;
        event->capture = stream->capture;
        event->stream = stream;
        return CUDA_SUCCESS;
    }
    return enqueue(handle, Record{event});
}
API CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags) {
    Stream* stream;
    TRY(resolve_stream(handle, &stream));
    // CU_EVENT_RECORD_EXTERNAL: a node that sets the event at each replay.
    if (stream->capture && (flags & 1)) {
        if (!is_live(event)) return CUDA_INVALID_HANDLE;
        return enqueue(handle, Record{event});
    }
    return cuEventRecord(event, handle);
}
API CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned) {
    Stream* stream;
    TRY(resolve_stream(handle, &stream));
    if (!is_live(event)) return CUDA_INVALID_HANDLE;
    Locked lock(state_lock);
    if (event->capture && !stream->capture) {
        // The stream joins the capture; its work has to be waited for before the end.
        stream->capture = event->capture;
        event->capture->streams.push_back(stream);
        event->capture->unjoined.insert(stream);
        return CUDA_SUCCESS;
    }
    if (!stream->capture) return CUDA_SUCCESS;
    if (event->capture && event->capture != stream->capture) {
        stream->capture->invalid = true;
        return CUDA_STREAM_CAPTURE_MERGE;
    }
    if (!event->capture) {
        if (!event->recorded) return CUDA_SUCCESS;
        stream->capture->invalid = true;
        return CUDA_STREAM_CAPTURE_ISOLATION;
    }
    stream->capture->unjoined.erase(event->stream);
    return CUDA_SUCCESS;
}
API CUresult cuEventSynchronize(CUevent event) {
    if (!is_live(event)) return CUDA_INVALID_HANDLE;
    if (!event->capture) return CUDA_SUCCESS;
    event->capture->invalid = true;
    return CUDA_CAPTURED_EVENT;
}
API CUresult cuEventQuery(CUevent event) { return cuEventSynchronize(event); }
API CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
    if (!is_live(start) || !is_live(end)) return CUDA_INVALID_HANDLE;
    if (!start->timed || !end->timed || !start->recorded || !end->recorded) return CUDA_INVALID_HANDLE;
    *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
    return CUDA_SUCCESS;
}
API CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}

// ---- capture -------------------------------------------------------------------------------------------------------------------------

API CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
    Stream* stream;
    TRY(resolve_stream(handle, &stream));
    if (mode < GLOBAL || mode > RELAXED) return CUDA_INVALID_VALUE;
    if (stream == stream->context->default_stream) return CUDA_STREAM_CAPTURE_UNSUPPORTED;
    Locked lock(state_lock);
    if (stream->capture) return CUDA_ILLEGAL_STATE;
    static uint64_t ids = 0;
    Capture* capture = new Capture;
    capture->graph = new Graph;
    capture->origin = stream;
    capture->streams = {stream};
    capture->id = ++ids;
    capture->thread = thread_number();
    capture->mode = mode;
    captures().push_back(capture);
    stream->capture = capture;
    return CUDA_SUCCESS;
}
API CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
    Stream* stream;
    TRY(resolve_stream(handle, &stream));
    Locked lock(state_lock);
    Capture* capture = stream->capture;
    *graph = nullptr;
    if (!capture) return CUDA_ILLEGAL_STATE;
    if (capture->origin != stream) return CUDA_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != RELAXED && capture->thread != thread_number()) return CUDA_STREAM_CAPTURE_WRONG_THREAD;
    const CUresult result = capture->invalid             ? CUDA_STREAM_CAPTURE_INVALIDATED
                            : !capture->unjoined.empty() ? CUDA_STREAM_CAPTURE_UNJOINED
                                                         : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) *graph = capture->graph;
    else delete capture->graph;
    drop(capture);
    return result;
}
API CUresult cuStreamIsCapturing(CUstream handle, int* status) {
    Stream* stream;
    TRY(resolve_stream(handle, &stream));
    *status = !stream->capture ? 0 : stream->capture->invalid ? 2 : 1;
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetCaptureInfo_v2(CUstream handle, int* status, uint64_t* id, CUgraph* graph, void*, size_t*) {
    Stream* stream;
    TRY(resolve_stream(handle, &stream));
    *status = !stream->capture ? 0 : stream->capture->invalid ? 2 : 1;
    if (stream->capture && id) *id = stream->capture->id;
    if (stream->capture && graph) *graph = stream->capture->graph;
    return CUDA_SUCCESS;
}
API CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
    *mode = GLOBAL;
    return CUDA_SUCCESS;
}

// ---- graphs --------------------------------------------------------------------------------------------------------------------------

API CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, uint64_t) {
    Context* context;
    TRY(current_context(&context));
    if (!is_live(graph) || graph->executable) return CUDA_INVALID_VALUE;
    *executable = new Graph;
    (*executable)->executable = true;
    for (const Node* node : graph->nodes) (*executable)->nodes.push_back(new Node(*node));
    return CUDA_SUCCESS;
}
API CUresult cuGraphInstantiate_v2(CUgraphExec* executable, CUgraph graph, CUgraphNode*, char*, size_t) {
    return cuGraphInstantiateWithFlags(executable, graph, 0);
}
API CUresult cuGraphUpload(CUgraphExec executable, CUstream handle) {
    Stream* stream;
    TRY(resolve_stream(handle, &stream));
    return is_live(executable) && executable->executable ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}
API CUresult cuGraphLaunch(CUgraphExec executable, CUstream handle) {
    Stream* stream;
    TRY(resolve_stream(handle, &stream));
    if (!is_live(executable) || !executable->executable) return CUDA_INVALID_VALUE;
    if (stream->capture) {
        stream->capture->invalid = true;
        return CUDA_STREAM_CAPTURE_UNSUPPORTED;
    }
    std::lock_guard<std::recursive_mutex> in_order(stream->running);
    for (const Node* node : executable->nodes) TRY(run(node->work));
    return CUDA_SUCCESS;
}
API CUresult cuGraphExecDestroy(CUgraphExec executable) {
    if (!is_live(executable) || !executable->executable) return CUDA_INVALID_VALUE;
    delete executable;
    return CUDA_SUCCESS;
}
API CUresult cuGraphDestroy(CUgraph graph) {
    if (!is_live(graph) || graph->executable) return CUDA_INVALID_VALUE;
    delete graph;
    return CUDA_SUCCESS;
}
API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    if (!is_live(graph) || !count) return CUDA_INVALID_VALUE;
    const size_t there = graph->nodes.size();
    if (nodes) {
        for (size_t i = 0; i < *count; i++) nodes[i] = i < there ? graph->nodes[i] : nullptr;
        if (*count > there) *count = there;
    } else {
        *count = there;
    }
    return CUDA_SUCCESS;
}
API CUresult cuGraphNodeGetType(CUgraphNode node, int* type) {
    if (!node) return CUDA_INVALID_VALUE;
    // In the order of `Work`: kernel, copy, fill, host call, event record.
    const int types[] = {0, 1, 2, 3, 7};
    *type = types[node->work.index()];
    return CUDA_SUCCESS;
}
