/* SPDX-License-Identifier: Apache-2.0 */
/* What ThreadSanitizer is to do in gaccd and all processes that it starts: Gloo, gRPC and libuv are not instrumented.
 * In the program, because engines and launchers have no environment that could say so. */

const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "ignore_noninstrumented_modules=1";
}
