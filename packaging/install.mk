# Installation. docs/install.md is the manual.

PREFIX     ?= /usr/local
DESTDIR    ?=
BINDIR     ?= $(PREFIX)/bin
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DOCDIR     ?= $(PREFIX)/share/doc/kvconn
DEBUGDIR   ?= $(PREFIX)/lib/debug

# What is installed: any shared library of kvconn, and any archive that packaging/archive.sh has made. Without a name, the
# archive is made from that of `make lib`.
KVCONN_BUILD_LIB     ?= $(LIB)
KVCONN_BUILD_ARCHIVE ?=
# kvconn-peer is installed too if `make peer` has built it beside the library.
KVCONN_BUILD_PEER    ?= $(wildcard $(dir $(KVCONN_BUILD_LIB))kvconn-peer)
# The binutils of the library's machine.
STRIP   ?= strip
OBJCOPY ?= objcopy
READELF ?= readelf
NM      ?= nm
# make itself knows LD and AR.

INSTALL_VARIABLES := PREFIX DESTDIR BINDIR LIBDIR INCLUDEDIR DOCDIR DEBUGDIR KVCONN_BUILD_LIB KVCONN_BUILD_ARCHIVE KVCONN_BUILD_PEER LD AR NM OBJCOPY READELF STRIP
INSTALL := KVCONN_CARGO_ARCHIVE='$(RELEASE)/libkvconn.a' $(foreach name,$(INSTALL_VARIABLES),$(name)='$($(name))')

INSTALL_NEEDS := $(if $(wildcard $(KVCONN_BUILD_LIB)),,$(if $(filter $(LIB),$(KVCONN_BUILD_LIB)),lib))
# Where the Debian packages are made.
DEB_DIR ?= $(TARGET)/deb

##@ Install
.PHONY: install uninstall deb
# The library is built if it is not there; otherwise this needs no compiler and can be root's.
install: $(INSTALL_NEEDS) ## into $(DESTDIR)$(PREFIX): library, headers, pkg-config, CMake, documents, kvconn-peer if built (docs/install.md)
	@$(INSTALL) packaging/install.sh install

uninstall: ## remove what `make install` with the same PREFIX and DESTDIR has made
	@$(INSTALL) packaging/install.sh uninstall

deb: $(INSTALL_NEEDS) ## Debian packages libkvconn0, libkvconn-dev, libkvconn0-dbgsym, in target/deb
	@$(INSTALL) packaging/deb.sh $(DEB_DIR)

.PHONY: test-install
test-install: lib peer venv ## an installed copy alone: C by pkg-config, C++ by CMake, beside another libzmq, in a Python extension, .deb
	$(VENV)/bin/python -m pytest -rs tests/install --basetemp=$(TARGET)/test-install
