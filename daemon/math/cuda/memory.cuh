/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that is written to a job's memory on a device besides sums and parameters: the gate, copies, zeros. Part
 * of kernels.cu. */

/* One block of one thread does it all. It is not counted: it only ever raises the gate. */
KERNEL(open_gate, struct cuda_open)
{
	if (blockIdx.x == 0 && threadIdx.x == 0)
		atomicMax(&a.pass.gate->generation, a.pass.generation);
}

DEVICE uint64_t global_thread()
{
	return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

DEVICE uint64_t global_threads()
{
	return (uint64_t)gridDim.x * blockDim.x;
}

KERNEL(copy_bytes, struct cuda_copy)
{
	const bool may = gate_enter(a.pass);
	const bool aligned = (((uintptr_t)a.to | (uintptr_t)a.from) & 15) == 0;
	const uint64_t whole = may && aligned ? a.bytes / 16 : 0;
	for (uint64_t i = global_thread(); i < whole; i += global_threads())
		put_stream((uint4 *)a.to + i, __ldcs((const uint4 *)a.from + i));
	for (uint64_t i = whole * 16 + global_thread(); may && i < a.bytes; i += global_threads())
		put((unsigned char *)a.to + i, get((const unsigned char *)a.from + i));
	gate_leave(a.pass, !may);
}

KERNEL(zero_bytes, struct cuda_zero)
{
	const bool may = gate_enter(a.pass);
	const uint64_t whole = may && ((uintptr_t)a.base & 15) == 0 ? a.bytes / 16 : 0;
	for (uint64_t i = global_thread(); i < whole; i += global_threads())
		put_stream((uint4 *)a.base + i, make_uint4(0, 0, 0, 0));
	for (uint64_t i = whole * 8 + global_thread(); may && i < a.bytes / 2; i += global_threads())
		put((uint16_t *)a.base + i, (uint16_t)0);
	gate_leave(a.pass, !may);
}

/* A warp for each gap: most are shorter than a tensor's alignment. */
KERNEL(zero_gaps, struct cuda_zero)
{
	const bool may = gate_enter(a.pass);
	for (uint64_t g = global_thread() / 32; may && g < a.n_gaps; g += global_threads() / 32)
		for (uint64_t i = a.gap[g].from / 2 + threadIdx.x % 32; i < a.gap[g].to / 2; i += 32)
			put((uint16_t *)a.base + i, (uint16_t)0);
	gate_leave(a.pass, !may);
}

template <enum dtype T> DEVICE void widen(const struct cuda_widen &a)
{
	const bool may = gate_enter(a.pass);
	for (uint64_t i = global_thread(); may && i < a.n / 4; i += global_threads())
		put_stream((float4 *)a.dst + i, quad<T>::load(a.src, 4 * i).values());
	gate_leave(a.pass, !may);
}
KERNEL(widen_bf16, struct cuda_widen)
{
	widen<DTYPE_BF16>(a);
}
KERNEL(widen_f16, struct cuda_widen)
{
	widen<DTYPE_F16>(a);
}
