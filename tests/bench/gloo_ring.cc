/* SPDX-License-Identifier: Apache-2.0 */
/* Gloo's all-reduce as C, as its users call it: over unbound buffers, out of place. For bench_coll alone. */
#include "gloo_ring.h"

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdio>

struct gloo_ring {
	std::shared_ptr<gloo::rendezvous::Context> context;
};

struct gloo_ring *gloo_ring_new(const char *dir, const char *address, int rank, int size)
{
	try {
		gloo::transport::tcp::attr attr;
		attr.hostname = address;
		std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attr);
		gloo::rendezvous::FileStore store(dir);
		auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
		context->connectFullMesh(store, device);
		return new gloo_ring{ context };
	} catch (const std::exception &e) {
		fprintf(stderr, "gloo: %s\n", e.what());
		return nullptr;
	}
}

static void add(void *to, const void *a, const void *b, size_t n)
{
	gloo::sum<float>(to, a, b, n);
}

int gloo_ring_sum(struct gloo_ring *r, const float *in, float *out, size_t n)
{
	try {
		gloo::AllreduceOptions options(r->context);
		options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
		options.setInput(const_cast<float *>(in), n);
		options.setOutput(out, n);
		options.setReduceFunction(add);
		gloo::allreduce(options);
		return 0;
	} catch (const std::exception &e) {
		fprintf(stderr, "gloo: %s\n", e.what());
		return -1;
	}
}

void gloo_ring_free(struct gloo_ring *r)
{
	delete r;
}
