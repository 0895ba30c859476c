/* SPDX-License-Identifier: Apache-2.0 */
/* For the thread sanitizer, which does not see gRPC (it is not instrumented): what was written before
 * handoff_given(tag), called just before gRPC takes the tag, is seen after handoff_taken(tag) where the queue gives it
 * back. Nothing else. */
#ifndef GACC_PROTO_HANDOFF_H
#define GACC_PROTO_HANDOFF_H

#if defined(__SANITIZE_THREAD__)
#define HANDOFF_SEEN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HANDOFF_SEEN 1
#endif
#endif

#ifdef HANDOFF_SEEN
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
#define handoff_given(tag) __tsan_release(tag)
#define handoff_taken(tag) __tsan_acquire(tag)
#else
#define handoff_given(tag) ((void)(tag))
#define handoff_taken(tag) ((void)(tag))
#endif

#endif
