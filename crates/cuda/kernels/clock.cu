// The GPU's clock as a kernel of its own: where a run begins, for stamps that are held against it.
#include "common.cuh"

// One thread. It is launched before a graph whose kernels stamp themselves (`GLIM_STAMPS`), and not in it.
KERNEL(32) read_clock(u64* time) {
    pdl_wait();
    pdl_go();
    if (threadIdx.x == 0) *time = nanoseconds();
}
