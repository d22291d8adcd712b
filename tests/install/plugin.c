/* A plain shared object that has the static library inside, for dlopen. */
#include "failover.h"

int plugin_failover(const char *first, const char *second) { return failover(first, second); }
