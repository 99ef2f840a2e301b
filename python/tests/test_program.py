# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kernels that are compiled, in C and OpenCL C."""

import errno

import numpy as np
import pinmap
import pytest

SAXPY = """
__global__ void saxpy(uint64_t count, float a, const float *x, float *y)
{
	uint64_t i = gridThread();

	if (i < count)
		y[i] = a * x[i] + y[i];
}

__global__ void reverse(int *data)
{
	int *own = sharedMemory();

	own[threadIdx.x] = data[gridThread()];
	__syncthreads();
	data[gridThread()] = own[blockDim.x - 1 - threadIdx.x];
}

__global__ void numbers(double *to, int8_t a, uint32_t b, int c, uint64_t d, float e, double f,
			bool g)
{
	to[0] = a, to[1] = b, to[2] = c, to[3] = d, to[4] = e, to[5] = f, to[6] = g;
}

__global__ void say(int first)
{
	printf("block %u, thread %u: %d\\n", blockIdx.x, threadIdx.y, first + (int)gridThread());
}

static void store(int *to)
{
	*to = 1;
}

__global__ void wild(int *to)
{
	if (gridThread() == 6)
		store(to);
}

__global__ void refuse(void)
{
	assert(threadIdx.x != 2);
}
"""

SUMS = """
__kernel void sums(__global const float *x, __global float *sums, __local float *tile)
{
	__local int left;
	size_t i = get_local_id(0);

	tile[i] = sqrt(x[get_global_id(0)]);
	left = get_local_size(0);
	barrier(CLK_LOCAL_MEM_FENCE);
	while (left > 1) {
		if (i < left / 2)
			tile[i] += tile[i + left / 2];
		barrier(CLK_LOCAL_MEM_FENCE);
		if (!i)
			left /= 2;
		barrier(CLK_LOCAL_MEM_FENCE);
	}
	if (!i)
		sums[get_group_id(0)] = tile[0];
}

__kernel void logs(__global double *x)
{
	x[get_global_id(0)] = log(x[get_global_id(0)]);
}
"""


@pytest.fixture(scope="module")
def compiled():
    return pinmap.compile("#include <stdbool.h>\n" + SAXPY)


@pytest.fixture
def program(gpu, compiled):
    with gpu.load(compiled) as loaded:
        yield loaded


def test_kernels_in_c_on_arrays_and_memory(gpu, stream, program):
    assert program.kernels == ["saxpy", "reverse", "numbers", "say", "wild", "refuse"]
    count = 1001
    x = np.arange(count, dtype="float32")
    for make in (gpu.alloc, gpu.alloc_vram, gpu.alloc_managed):
        with make(count, "float32") as y:
            stream.fill(y, 1.0)
            arguments = (count, np.float32(2), x, y)
            for _ in range(2):
                program.launch(stream, "saxpy", -(-count // 64), 64, *arguments)
            stream.synchronize()
            np.testing.assert_array_equal(np.asarray(y), 4 * x + 1)
    y = np.ones(count, "float32")
    y[500:] = 0
    program.launch(stream, "saxpy", 8, 64, 500, np.float32(0.5), x, y[:500])
    stream.synchronize()
    np.testing.assert_array_equal(y, np.where(x < 500, x / 2 + 1, 0))


def test_kernels_share_memory(stream, program):
    data = np.arange(64, dtype="int32")
    program.launch(stream, "reverse", (2, 2), (16,), data, shared_bytes=64)
    stream.synchronize()
    np.testing.assert_array_equal(data, np.arange(64).reshape(4, 16)[:, ::-1].ravel())


def test_numbers_have_the_types_of_parameters(stream, program):
    to = np.zeros(7)
    numbers = (-5, np.uint32(4_000_000_000), -7, 1 << 60, np.float32(0.1), np.float64(0.1), True)
    program.launch(stream, "numbers", 1, 1, to, *numbers)
    stream.synchronize()
    wanted = [-5, 4_000_000_000, -7, float(1 << 60), float(np.float32(0.1)), 0.1, 1]
    assert to.tolist() == wanted
    with pytest.raises(TypeError, match="numpy.float32"):
        program.launch(stream, "numbers", 1, 1, to, 0.5)
    with pytest.raises(OverflowError):
        program.launch(stream, "numbers", 1, 1, to, 1 << 64)
    with pytest.raises(TypeError, match="neither Memory nor an array"):
        program.launch(stream, "numbers", 1, 1, to, "text")


def test_what_kernels_print_is_printed_in_order(stream, program, capsys):
    for first in (10, 20):
        program.launch(stream, "say", 2, (1, 2), first)
    stream.synchronize()
    said = capsys.readouterr().out.splitlines()
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    wanted = [
        f"block {block}, thread {thread}: {first + index}"
        for first in (10, 20)
        for index, (block, thread) in enumerate(places)
    ]
    assert said == wanted
    # More launches than may be in flight.
    for first in range(100):
        program.launch(stream, "say", 1, 1, first)
    stream.synchronize()
    assert len(capsys.readouterr().out.splitlines()) == 100
    # Those for which there is no memory wait for those that are done.
    vram = stream.device.accelerator_info().vram_length
    for first in range(6):
        program.launch(stream, "say", 1, 1, first, stack_bytes=vram // 4)
    stream.synchronize()
    assert len(capsys.readouterr().out.splitlines()) == 6
    with pytest.raises(pinmap.Error, match="memory of the device"):
        program.launch(stream, "say", 1, 1, 0, stack_bytes=vram)


def test_a_kernel_that_stops_says_where(gpu, program, capsys):
    stream = gpu.stream()
    program.launch(stream, "wild", 4, 4, 0x30)
    with pytest.raises(pinmap.KernelStopped, match="kernel wild, block 1, thread 2") as caught:
        stream.synchronize()
    error = caught.value
    assert (error.kernel, error.block, error.thread, error.value) == ("wild", 1, 2, 0x30)
    assert error.function.startswith("wild+0x") and error.pc
    assert error.errno == errno.EIO and isinstance(error, pinmap.Error)
    assert "nothing is mapped there" in str(error)
    stream.reset()
    program.launch(stream, "refuse", 1, 4)
    with pytest.raises(pinmap.KernelStopped) as caught:
        stream.close()
    assert caught.value.thread == 2
    said = capsys.readouterr().out
    assert "kernels.c:" in said and f":{caught.value.value}: assertion" in said


def test_kernels_in_opencl(gpu, stream):
    program = gpu.load(pinmap.compile(SUMS, language="opencl"))
    assert "sums, logs" in repr(program)
    x = np.arange(256, dtype="float32")
    x.flags.writeable = False
    sums = np.zeros(4, "float32")
    program.launch(stream, "sums", 4, 64, x, sums, pinmap.Local(64 * 4))
    stream.synchronize()
    np.testing.assert_allclose(sums, np.sqrt(x).reshape(4, 64).sum(axis=1), rtol=1e-5)
    numbers = np.linspace(1, 2, 16)
    wanted = np.log(numbers)
    program.launch(stream, "logs", 2, 8, numbers)
    # What was launched is done.
    program.close()
    stream.synchronize()
    np.testing.assert_allclose(numbers, wanted, rtol=1e-14)
    assert program.closed
    with pytest.raises(ValueError, match="the program is closed"):
        program.launch(stream, "logs", 2, 8, numbers)


def test_kernels_in_c_have_mathematics(gpu, stream):
    source = """
    #include <math.h>

    __global__ void f(double *x)
    {
        x[gridThread()] = fmax(exp(x[gridThread()]), 2) + sqrt(x[gridThread()]);
    }
    """
    program = gpu.load(pinmap.compile(source))
    # What is linked with them is no kernel.
    assert program.kernels == ["f"]
    x = np.linspace(0, 3, 32)
    wanted = np.maximum(np.exp(x), 2) + np.sqrt(x)
    program.launch(stream, "f", 1, 32, x)
    stream.synchronize()
    np.testing.assert_allclose(x, wanted, rtol=1e-14)


def test_what_cannot_be_launched(gpu, stream, program):
    x = np.zeros(100, "float32")
    with pytest.raises(pinmap.InvalidInput, match="no kernel `other`"):
        program.launch(stream, "other", 1, 1)
    with pytest.raises(pinmap.InvalidInput, match="1 to 1024"):
        program.launch(stream, "saxpy", 1, 2000)
    with pytest.raises(pinmap.InvalidInput, match="4 numbers"):
        program.launch(stream, "saxpy", 1, (1, 1, 1, 1))
    with pytest.raises(TypeError, match="blocks"):
        program.launch(stream, "saxpy", "many", 1)
    with pytest.raises(pinmap.Error, match="overlaps"):
        program.launch(stream, "saxpy", 1, 1, 1, np.float32(1), x, x)
    with pytest.raises(pinmap.InvalidInput, match="no program for the device"):
        gpu.load(b"text")
    stream.synchronize()


def test_what_cannot_be_compiled(monkeypatch, tmp_path):
    with pytest.raises(pinmap.InvalidInput, match=r"kernels.c:2:\d+: error"):
        pinmap.compile("\nthis is no C")
    with pytest.raises(pinmap.InvalidInput, match="undefined symbol: nothing"):
        pinmap.compile("void nothing(void);\n__global__ void f(void)\n{\n\tnothing();\n}")
    with pytest.raises(pinmap.InvalidInput, match="fortran"):
        pinmap.compile("", language="fortran")
    with pytest.raises(pinmap.InvalidInput, match="undefined symbol: read_imagef"):
        parameters = "image2d_t i, sampler_t s, __global float4 *x"
        source = f"__kernel void f({parameters}) {{ *x = read_imagef(i, s, (int2)(0)); }}"
        pinmap.compile(source, language="opencl")
    # Flags are clang's.
    assert pinmap.compile("__global__ void f(void) { N; }", flags=["-DN=0"])[:4] == b"\x7fELF"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pinmap.NotFound, match="packages clang and lld") as caught:
        pinmap.compile("")
    assert caught.value.errno == errno.ENOENT
    # A clang that finds no linker.
    script = tmp_path / "clang-19"
    script.write_text("#!/bin/sh\necho \"invalid linker name in '-fuse-ld=lld'\" >&2\nexit 1\n")
    script.chmod(0o755)
    with pytest.raises(pinmap.NotFound, match="lld, the linker"):
        pinmap.compile("")
