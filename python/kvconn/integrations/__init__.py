"""kvconn under engines that are not changed for it. Each module says how to install it."""
