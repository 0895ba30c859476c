/* SPDX-License-Identifier: Apache-2.0 */
/* Gloo's devices, contexts and buffers as C, for coll_gloo: catches every exception. The only C++ of gacc. On the
 * callers' threads; Gloo has one more for each device. */
#include "coll/gloo_shim.h"

#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <cstdio>
#include <cstring>
#include <netinet/in.h>

namespace
{

using gloo::transport::tcp::Address;
using std::chrono::milliseconds;

/* Gloo's own time limits would end all connections: waits are ended by shim_wake and shim_close instead. */
constexpr milliseconds never = std::chrono::hours(10);

/* What f gives, or `broken` if it throws. */
template <class T, class F> T guarded(char *why, T broken, F f) noexcept
{
	const char *text = "an unknown exception";
	try {
		return f();
	} catch (const std::exception &e) {
		text = e.what();
		if (why)
			snprintf(why, SHIM_TEXT, "%s", text);
	} catch (...) {
		if (why)
			snprintf(why, SHIM_TEXT, "%s", text);
	}
	return broken;
}

} // namespace

struct shim_device {
	std::shared_ptr<gloo::transport::Device> device;
};

struct shim_context {
	std::shared_ptr<gloo::transport::Context> context;
};

struct shim_buffer {
	std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
};

/* ---- devices and contexts ---- */

struct shim_device *shim_device_new(const char *interface, const char *address, char why[SHIM_TEXT])
{
	return guarded<shim_device *>(why, nullptr, [&] {
		gloo::transport::tcp::attr attr;
		if (interface)
			attr.iface = interface;
		else
			attr.hostname = address;
		return new shim_device{ gloo::transport::tcp::CreateDevice(attr) };
	});
}

void shim_device_free(struct shim_device *d)
{
	delete d;
}

struct shim_context *shim_context_new(struct shim_device *d, uint32_t part, uint32_t n_parts, char why[SHIM_TEXT])
{
	return guarded<shim_context *>(why, nullptr, [&] {
		auto context = d->device->createContext(static_cast<int>(part), static_cast<int>(n_parts));
		context->setTimeout(never);
		for (uint32_t s = 0; s < n_parts; s++)
			if (s != part)
				context->createPair(static_cast<int>(s));
		return new shim_context{ std::move(context) };
	});
}

void shim_context_free(struct shim_context *c)
{
	delete c;
}

void shim_address(const struct shim_context *c, uint32_t part, struct sockaddr_storage *out)
{
	/* Gloo's addresses end with a number that this version does not use. */
	auto bytes = c->context->getPair(static_cast<int>(part))->address().bytes();
	*out = Address(bytes).getSockaddr();
}

bool shim_connects(const struct sockaddr_storage *own, const struct sockaddr_storage *other)
{
	if (own->ss_family == AF_INET) {
		auto a = reinterpret_cast<const sockaddr_in *>(own), b = reinterpret_cast<const sockaddr_in *>(other);
		int order = memcmp(&a->sin_addr, &b->sin_addr, sizeof(a->sin_addr));
		return (order ? order : a->sin_port - b->sin_port) > 0; /* ports as they lie in memory: so does Gloo */
	}
	auto a = reinterpret_cast<const sockaddr_in6 *>(own), b = reinterpret_cast<const sockaddr_in6 *>(other);
	int order = memcmp(&a->sin6_addr, &b->sin6_addr, sizeof(a->sin6_addr));
	return (order ? order : a->sin6_port - b->sin6_port) > 0;
}

enum shim_result shim_connect(struct shim_context *c, uint32_t part, const struct sockaddr_storage *address,
			      char why[SHIM_TEXT])
{
	return guarded(why, SHIM_BROKEN, [&] {
		c->context->getPair(static_cast<int>(part))->connect(Address(*address).bytes());
		return SHIM_DONE;
	});
}

void shim_context_break(struct shim_context *c)
{
	guarded(nullptr, SHIM_BROKEN, [&] {
		char nothing;
		c->context->createUnboundBuffer(&nothing, sizeof(nothing))->waitRecv(milliseconds(1));
		return SHIM_DONE;
	});
}

/* ---- buffers ---- */

struct shim_buffer *shim_buffer_new(struct shim_context *c, void *memory, size_t n)
{
	return guarded<shim_buffer *>(nullptr, nullptr,
				      [&] { return new shim_buffer{ c->context->createUnboundBuffer(memory, n) }; });
}

void shim_buffer_free(struct shim_buffer *b)
{
	delete b;
}

enum shim_result shim_send(struct shim_buffer *b, uint32_t to, uint64_t slot, uint64_t from, size_t n)
{
	return guarded(nullptr, SHIM_BROKEN, [&] {
		b->buffer->send(static_cast<int>(to), slot, from, n);
		return SHIM_DONE;
	});
}

enum shim_result shim_recv(struct shim_buffer *b, uint32_t source, uint64_t slot, uint64_t from, size_t n)
{
	return guarded(nullptr, SHIM_BROKEN, [&] {
		b->buffer->recv(static_cast<int>(source), slot, from, n);
		return SHIM_DONE;
	});
}

enum shim_result shim_wait_send(struct shim_buffer *b)
{
	return guarded(nullptr, SHIM_BROKEN, [&] { return b->buffer->waitSend(never) ? SHIM_DONE : SHIM_WOKEN; });
}

enum shim_result shim_wait_recv(struct shim_buffer *b)
{
	return guarded(nullptr, SHIM_BROKEN, [&] { return b->buffer->waitRecv(never) ? SHIM_DONE : SHIM_WOKEN; });
}

bool shim_received(struct shim_buffer *b, unsigned ms)
{
	return guarded(nullptr, false, [&] { return b->buffer->waitRecv(milliseconds(ms)); });
}

void shim_wake(struct shim_buffer *b)
{
	b->buffer->abortWaitRecv();
	b->buffer->abortWaitSend();
}
