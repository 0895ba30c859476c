/* SPDX-License-Identifier: Apache-2.0 */
/* grpc.health.v1: answers Check, and tells watchers when the state of a service changes. For supervisors and load
 * balancers, which need no identity. Loop thread. */
#include "rpc/rpc.h"
#include "grpc/health/v1/health.pb-c.h"

#include <stdlib.h>
#include <string.h>
#include <grpc/status.h>

typedef Grpc__Health__V1__HealthCheckRequest request_msg;
typedef Grpc__Health__V1__HealthCheckResponse response_msg;
typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving_status;
#define STATE(name) GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__##name

#define SERVICES_MAX 16

struct service {
	char name[96];
	serving_status state;
};

/* One Watch call. */
struct watcher {
	struct watcher *next, **link;
	struct rpc_call *call;
	char name[96];
	serving_status told;
};

struct rpc_health {
	struct service services[SERVICES_MAX];
	size_t n_services;
	struct watcher *watchers;
};

static struct service *find(struct rpc_health *health, const char *name)
{
	for (size_t i = 0; i < health->n_services; i++)
		if (strcmp(health->services[i].name, name) == 0)
			return &health->services[i];
	return NULL;
}

static void on_check(struct rpc_call *call, const ProtobufCMessage *request, const struct bytes_view *bulk)
{
	struct service *service = find(rpc_context(call), ((const request_msg *)request)->service);
	response_msg reply = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
	if (!service) {
		rpc_finish_code(call, GRPC_STATUS_NOT_FOUND, "unknown service");
		return;
	}
	reply.status = service->state;
	rpc_finish(call, &reply.base);
}

static void tell(struct rpc_health *health, struct watcher *watcher)
{
	struct service *service = find(health, watcher->name);
	response_msg msg = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
	msg.status = service ? service->state : STATE(SERVICE_UNKNOWN);
	if (msg.status == watcher->told)
		return;
	watcher->told = msg.status;
	if (rpc_send(watcher->call, &msg.base) == ST_RESOURCE_EXHAUSTED)
		rpc_failf(watcher->call, ST_RESOURCE_EXHAUSTED,
			  "the watcher does not read its answers: watch again, and read them");
}

static void on_watch(struct rpc_call *call, const ProtobufCMessage *request, const struct bytes_view *bulk)
{
	struct rpc_health *health = rpc_context(call);
	const char *name = ((const request_msg *)request)->service;
	struct watcher *watcher = calloc(1, sizeof(*watcher));
	if (!watcher || strlen(name) >= sizeof(watcher->name)) {
		rpc_failf(call, watcher ? ST_INVALID_ARGUMENT : ST_NO_MEMORY, "%s",
			  watcher ? "service: its name is too long" : "no memory for the watcher");
		free(watcher);
		return;
	}
	strcpy(watcher->name, name);
	watcher->told = STATE(UNKNOWN);
	watcher->call = call;
	watcher->next = health->watchers;
	watcher->link = &health->watchers;
	if (watcher->next)
		watcher->next->link = &watcher->next;
	health->watchers = watcher;
	rpc_set_data(call, watcher);
	tell(health, watcher);
}

static void on_watch_end(struct rpc_call *call, bool completed)
{
	struct watcher *watcher = rpc_data(call);
	if (!watcher)
		return;
	*watcher->link = watcher->next;
	if (watcher->next)
		watcher->next->link = watcher->link;
	free(watcher);
}

static const struct rpc_method rows[] = {
	{ .service = &grpc__health__v1__health__descriptor,
	  .name = "Check",
	  .kind = RPC_UNARY,
	  .flags = RPC_NEEDS_NO_IDENTITY,
	  .on_message = on_check },
	{ .service = &grpc__health__v1__health__descriptor,
	  .name = "Watch",
	  .kind = RPC_SERVER_STREAM,
	  .flags = RPC_NEEDS_NO_IDENTITY | RPC_ENDS_ON_DRAIN,
	  .on_message = on_watch,
	  .on_end = on_watch_end },
};

enum status rpc_health_new(struct rpc_server *server, struct rpc_health **out_health)
{
	struct rpc_health *health = calloc(1, sizeof(*health));
	if (!health)
		return ST_NO_MEMORY;
	rpc_health_set(health, "", false);
	enum status st = rpc_server_add(server, rows, sizeof(rows) / sizeof(rows[0]), health);
	if (st != ST_OK)
		goto fail;
	*out_health = health;
	return ST_OK;
fail:
	rpc_health_free(health);
	return st;
}

void rpc_health_free(struct rpc_health *health)
{
	free(health);
}

enum status rpc_health_set(struct rpc_health *health, const char *name, bool serving)
{
	struct service *service = find(health, name);
	if (!service) {
		if (health->n_services == SERVICES_MAX || strlen(name) >= sizeof(service->name))
			return ST_RESOURCE_EXHAUSTED;
		service = &health->services[health->n_services++];
		strcpy(service->name, name);
	}
	service->state = serving ? STATE(SERVING) : STATE(NOT_SERVING);
	for (struct watcher *w = health->watchers; w; w = w->next)
		if (strcmp(w->name, name) == 0)
			tell(health, w);
	return ST_OK;
}
