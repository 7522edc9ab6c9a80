"""How one chunk of a co-executed operation is computed: a part of a matrix product or of a convolution.

The kernels are ``coexec_gemm`` and ``coexec_conv2d`` and their versions of lower precision (`polymux.kernel.builtin`).
Each gets whole arrays and a range, and writes only that range (`parts`), so that several devices fill one array. A
kernel can have several **methods** (`methods`): libraries on the host's cores (`host`, with `numpy_chunk`,
`onnx_chunk`, `torch_chunk`, `native_chunk`), programs on OpenCL (`opencl_gemm`, `opencl_conv`, with `packed`), cuBLAS
by CuPy (`cuda_chunk`). `polymux.profiling.coexec` measures which is best on a device; a scalar tells the kernel.
"""
