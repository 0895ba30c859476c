/* SPDX-License-Identifier: Apache-2.0 */
#include "script.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

void script_fail(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	_exit(1);
}
