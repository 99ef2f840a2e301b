// SPDX-License-Identifier: MIT OR Apache-2.0
// libpinmap from C++17: owners that end what they own, and threads that share a device.
#include <pinmap.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Close {
	void operator()(pinmap_device *device) const { pinmap_close(device); }
	void operator()(pinmap_memory *memory) const { pinmap_release(memory); }
	void operator()(pinmap_stream *stream) const { pinmap_stream_destroy(stream); }
};

template <typename T> using Owner = std::unique_ptr<T, Close>;

template <typename T> Owner<T> own(T *handle)
{
	if (!handle)
		throw std::runtime_error(pinmap_last_error());
	return Owner<T>(handle);
}

void check(int result)
{
	if (result < 0)
		throw std::runtime_error(pinmap_last_error());
}

// A page-aligned vector's worth of floats.
constexpr std::size_t count = 1 << 16;

void work(pinmap_device *gpu, float begin)
{
	auto stream = own(pinmap_stream_create(gpu, nullptr));
	std::unique_ptr<float, void (*)(void *)> numbers(
		static_cast<float *>(std::aligned_alloc(4096, count * sizeof(float))), std::free);

	if (!numbers)
		throw std::bad_alloc();
	for (std::size_t i = 0; i < count; i++)
		numbers.get()[i] = begin;
	auto memory = own(pinmap_register(gpu, numbers.get(), count * sizeof(float), nullptr));
	for (int i = 0; i < 10; i++)
		check(pinmap_testgpu_increment_f32(stream.get(), memory.get(), 0, count));
	check(pinmap_stream_synchronize(stream.get(), -1));
	for (std::size_t i = 0; i < count; i++)
		if (numbers.get()[i] != begin + 10)
			throw std::runtime_error("the sums are wrong");
}

} // namespace

int main()
try {
	auto gpu = own(pinmap_find_accelerator());
	std::vector<std::string> failures(4);
	std::vector<std::thread> threads;

	for (std::size_t i = 0; i < failures.size(); i++)
		threads.emplace_back([&, i] {
			try {
				work(gpu.get(), static_cast<float>(100 * i));
			} catch (const std::exception &error) {
				failures[i] = error.what();
			}
		});
	for (auto &thread : threads)
		thread.join();
	for (const auto &failure : failures)
		if (!failure.empty())
			throw std::runtime_error(failure);
	std::puts("4 threads, 10 increments each");
	return 0;
} catch (const std::exception &error) {
	std::fprintf(stderr, "%s\n", error.what());
	return 1;
}
