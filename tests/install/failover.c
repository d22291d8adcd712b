/* failover FIRST SECOND: a C program against an installed kvconn. */
#include "failover.h"

int main(int count, char **arguments) {
    if (count != 3) return 2;
    return failover(arguments[1], arguments[2]);
}
