/* kvconn.hpp: kvconn for C++17 and newer, in one header over kvconn.h. docs/cpp.md is its guide.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Names. Take the C name and drop the prefix: kvconn_send is kvconn::send, kvconn_conn_t is kvconn::conn_t,
 * KVCONN_PEER_LOST is status::peer_lost. The calls of an object are its members: kvconn_options_set is options::set,
 * kvconn_failure_name is failure::name. A batch stands for kvconn_send_batch and kvconn_send_batch_packed. kvconn.h says
 * what each call does and which statuses it returns; the comments here say what is different in C++.
 *
 * Errors. Each call has two forms. send() throws kvconn::error. try_send() returns result<T>, throws nothing, and is the
 * only form under -fno-exceptions. Both do the same. "On an error nothing was done" holds, with the exceptions that
 * kvconn.h lists. Apart from that only std::bad_alloc can be thrown, by calls that return or take strings, vectors or
 * callables.
 *
 * Ownership. manager, options, failure and owned_message are move-only and free what they own. Ids (manager_t, conn_t,
 * node_t) are plain values and own nothing. Texts and frames that a call takes are read during the call only, except
 * those of send_owned.
 *
 * Threads. Each function may be called from any thread at any time. An object of this header (a batch, an owner) is like
 * a standard container: threads that share one must agree who changes it. Release and log functions run on threads of
 * kvconn and must be noexcept; a function that is not does not compile. */
#ifndef KVCONN_HPP
#define KVCONN_HPP

#include "kvconn.h"

#include <array>
#include <atomic>
#include <cassert>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>
#if __cplusplus >= 202002L && __has_include(<span>)
#include <span>
#endif

namespace kvconn {

static_assert(KVCONN_ABI_VERSION == 0, "this kvconn.hpp belongs to another kvconn.h");

using std::chrono::milliseconds;

/// As a timeout: the option send_timeout_ms, unless the function names another default.
inline constexpr milliseconds default_timeout{KVCONN_DEFAULT_TIMEOUT};
/// As a sequence, for flush and wait_released: the last message accepted so far.
inline constexpr std::uint64_t last_accepted = 0;

// == Ids ==============================================================================================================

/// The id of a manager, a connection or a node. The three are different types: disconnect(node) does not compile. An id
/// is a number that owns nothing; a default one is 0, "none". Comparable, and a key of ordered and unordered maps.
template <class Raw, class Kind>
class id {
public:
    using raw_t = Raw; ///< The type in kvconn.h.

    constexpr id() noexcept = default;
    /// From a number, for example one that was logged or stored.
    explicit constexpr id(std::uint64_t number) noexcept : number_(number) {}
    /// From what a C call returned.
    [[nodiscard]] static id from(Raw raw) noexcept {
        if constexpr (std::is_pointer_v<Raw>) { // KVCONN_STRICT_IDS
            return id(reinterpret_cast<std::uint64_t>(raw));
        } else {
            return id(raw);
        }
    }
    /// As a C call takes it.
    [[nodiscard]] Raw raw() const noexcept {
        if constexpr (std::is_pointer_v<Raw>) {
            return reinterpret_cast<Raw>(number_);
        } else {
            return number_;
        }
    }
    [[nodiscard]] constexpr std::uint64_t number() const noexcept { return number_; }
    /// Whether it is not "none".
    explicit constexpr operator bool() const noexcept { return number_ != 0; }

    friend constexpr bool operator==(id a, id b) noexcept { return a.number_ == b.number_; }
    friend constexpr bool operator!=(id a, id b) noexcept { return a.number_ != b.number_; }
    friend constexpr bool operator<(id a, id b) noexcept { return a.number_ < b.number_; }

private:
    std::uint64_t number_ = 0;
};

using manager_t = id<kvconn_manager_t, struct manager_kind>; ///< A manager.
using conn_t = id<kvconn_conn_t, struct conn_kind>; ///< A connection.
using node_t = id<kvconn_node_t, struct node_kind>; ///< A node: one life of a peer instance.

inline constexpr manager_t default_manager{KVCONN_DEFAULT}; ///< The process's own manager.

// == Enums ============================================================================================================
//
// A newer library may return other numbers: keep a default path after a switch.

enum class status : std::int32_t {
    ok = KVCONN_OK,
    invalid = KVCONN_INVALID,
    stale = KVCONN_STALE,
    not_found = KVCONN_NOT_FOUND,
    timeout = KVCONN_TIMEOUT,
    stalled = KVCONN_STALLED,
    backoff = KVCONN_BACKOFF,
    connect_failed = KVCONN_CONNECT_FAILED,
    peer_lost = KVCONN_PEER_LOST,
    disconnected = KVCONN_DISCONNECTED,
    node_failed = KVCONN_NODE_FAILED,
    conflict = KVCONN_CONFLICT,
    limit = KVCONN_LIMIT,
    shutdown = KVCONN_SHUTDOWN,
    internal = KVCONN_INTERNAL,
    unsupported = KVCONN_UNSUPPORTED,
    partial = KVCONN_PARTIAL,
    would_deadlock = KVCONN_WOULD_DEADLOCK,
    evicted = KVCONN_EVICTED,
};

enum class scope : std::int32_t {
    none = KVCONN_SCOPE_NONE,
    call = KVCONN_SCOPE_CALL,
    peer = KVCONN_SCOPE_PEER,
    node = KVCONN_SCOPE_NODE,
    process = KVCONN_SCOPE_PROCESS,
};

enum class state : std::int32_t {
    connecting = KVCONN_STATE_CONNECTING,
    ready = KVCONN_STATE_READY,
    ended = KVCONN_STATE_ENDED,
};

enum class ended_by : std::int32_t {
    unknown = KVCONN_ENDED_UNKNOWN,
    fin = KVCONN_ENDED_FIN,
    reset = KVCONN_ENDED_RESET,
    timeout = KVCONN_ENDED_TIMEOUT,
    local = KVCONN_ENDED_LOCAL,
};

/// event_kind::none is never seen in C++: next_event returns no event instead.
enum class event_kind : std::int32_t {
    none = KVCONN_EVENT_NONE,
    ready = KVCONN_EVENT_READY,
    connect_failed = KVCONN_EVENT_CONNECT_FAILED,
    peer_lost = KVCONN_EVENT_PEER_LOST,
    disconnected = KVCONN_EVENT_DISCONNECTED,
    evicted = KVCONN_EVENT_EVICTED,
    stalled = KVCONN_EVENT_STALLED,
    recovered = KVCONN_EVENT_RECOVERED,
    node_failed = KVCONN_EVENT_NODE_FAILED,
    overflow = KVCONN_EVENT_OVERFLOW,
};

enum class outcome : std::int32_t {
    acknowledged = KVCONN_OUTCOME_ACKNOWLEDGED,
    unacknowledged = KVCONN_OUTCOME_UNACKNOWLEDGED,
    unknown = KVCONN_OUTCOME_UNKNOWN,
};

enum class log_level : std::int32_t {
    off = KVCONN_LOG_OFF,
    error = KVCONN_LOG_ERROR,
    warn = KVCONN_LOG_WARN,
    info = KVCONN_LOG_INFO,
    debug = KVCONN_LOG_DEBUG,
};

// == The library ======================================================================================================

/// The version of the loaded library; KVCONN_VERSION is that of the header.
[[nodiscard]] inline const char *version() noexcept { return kvconn_version(); }
/// The ABI number of the loaded library.
[[nodiscard]] inline std::int32_t abi_version() noexcept { return kvconn_abi_version(); }
/// Whether the loaded library is one that this program was compiled for. If not, call nothing else of it.
[[nodiscard]] inline bool abi_matches() noexcept { return kvconn_abi_version() == KVCONN_ABI_VERSION; }
/// Whether the loaded library has a feature, such as "curve".
[[nodiscard]] inline bool has(const char *feature) noexcept { return kvconn_has(feature) != 0; }
/// The meaning of a status, in one sentence.
[[nodiscard]] inline const char *strerror(status s) noexcept { return kvconn_strerror(static_cast<kvconn_status_t>(s)); }
/// The name of a status as in kvconn.h, such as "KVCONN_TIMEOUT".
[[nodiscard]] inline const char *status_name(status s) noexcept {
    return kvconn_status_name(static_cast<kvconn_status_t>(s));
}
/// The name of an event kind as in kvconn.h, such as "KVCONN_EVENT_READY".
[[nodiscard]] inline const char *event_name(event_kind kind) noexcept {
    return kvconn_event_name(static_cast<kvconn_event_kind_t>(kind));
}
/// The errno of a status, for code that knows errnos only. error_t::os_errno() has it if the operating system has given none.
[[nodiscard]] inline int status_errno(status s) noexcept { return kvconn_status_errno(static_cast<kvconn_status_t>(s)); }

// == Errors and results ===============================================================================================

namespace detail {

/// A number of messages that may be unknown.
inline std::optional<std::uint64_t> count(std::uint64_t number) noexcept {
    return number == KVCONN_UNKNOWN ? std::nullopt : std::optional<std::uint64_t>(number);
}
inline std::chrono::system_clock::time_point wall_clock(std::int64_t ms) noexcept {
    return std::chrono::system_clock::time_point(milliseconds(ms));
}

} // namespace detail

/// The details of an error. A copy that later calls do not change.
class error_t {
public:
    explicit error_t(const kvconn_error_t &c) noexcept : c_(c) {}

    [[nodiscard]] kvconn::status status() const noexcept { return static_cast<kvconn::status>(c_.status); }
    /// The name of the status as in kvconn.h, such as "KVCONN_PEER_LOST".
    [[nodiscard]] const char *name() const noexcept { return kvconn_status_name(c_.status); }
    [[nodiscard]] int os_errno() const noexcept { return c_.os_errno; }
    [[nodiscard]] kvconn::scope scope() const noexcept { return static_cast<kvconn::scope>(c_.scope); }
    /// Whether the same endpoint may be tried again without a change by the caller.
    [[nodiscard]] bool retriable() const noexcept { return c_.retriable != 0; }
    [[nodiscard]] milliseconds retry_after() const noexcept { return milliseconds(c_.retry_after_ms); }
    /// The connection that the error is about, or none. For a connect that timed out: the one whose dial goes on.
    [[nodiscard]] conn_t conn() const noexcept { return conn_t::from(c_.conn); }
    [[nodiscard]] const char *endpoint() const noexcept { return c_.endpoint; } ///< "" if it is about no endpoint.
    [[nodiscard]] const char *message() const noexcept { return c_.message; } ///< One line for a person.
    [[nodiscard]] const kvconn_error_t &c() const noexcept { return c_; }

private:
    kvconn_error_t c_;
};

#ifdef __cpp_exceptions
/// What the throwing form of a call throws: an error_t whose what() is its message.
class error : public std::exception, public error_t {
public:
    explicit error(const error_t &e) noexcept : error_t(e) {}
    [[nodiscard]] const char *what() const noexcept override { return message(); }
};
#endif

/// What the try_ form of a call returns: the value, or the error. std::expected of C++23 has the same names.
template <class T>
class [[nodiscard]] result {
public:
    result(T value) : it_(std::in_place_index<0>, std::move(value)) {}
    result(const error_t &error) noexcept : it_(std::in_place_index<1>, error) {}

    [[nodiscard]] bool has_value() const noexcept { return it_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }
    [[nodiscard]] kvconn::status status() const noexcept { return has_value() ? kvconn::status::ok : error().status(); }
    /// The error. Only if there is no value.
    [[nodiscard]] const error_t &error() const noexcept {
        assert(!has_value());
        return *std::get_if<1>(&it_);
    }
    /// The value. Only if there is one.
    [[nodiscard]] T &operator*() & noexcept { return get(); }
    [[nodiscard]] const T &operator*() const & noexcept { return const_cast<result *>(this)->get(); }
    [[nodiscard]] T &&operator*() && noexcept { return std::move(get()); }
    [[nodiscard]] T *operator->() noexcept { return &get(); }
    [[nodiscard]] const T *operator->() const noexcept { return &const_cast<result *>(this)->get(); }
    template <class U>
    [[nodiscard]] T value_or(U &&other) && {
        return has_value() ? std::move(get()) : static_cast<T>(std::forward<U>(other));
    }
#ifdef __cpp_exceptions
    /// The value; throws the error if there is none.
    T value() && {
        if (!has_value()) throw kvconn::error(error());
        return std::move(get());
    }
#endif

private:
    T &get() noexcept {
        assert(has_value());
        return *std::get_if<0>(&it_);
    }
    std::variant<T, error_t> it_;
};

/// The result of a call without a value.
template <>
class [[nodiscard]] result<void> {
public:
    result() noexcept = default;
    result(const error_t &error) noexcept : error_(error) {}

    [[nodiscard]] bool has_value() const noexcept { return !error_; }
    explicit operator bool() const noexcept { return has_value(); }
    [[nodiscard]] kvconn::status status() const noexcept { return error_ ? error_->status() : kvconn::status::ok; }
    /// The error. Only if there is one.
    [[nodiscard]] const error_t &error() const noexcept {
        assert(error_);
        return *error_;
    }
#ifdef __cpp_exceptions
    /// Throws the error, if there is one.
    void value() const {
        if (error_) throw kvconn::error(*error_);
    }
#endif

private:
    std::optional<error_t> error_;
};

namespace detail {

/// One C call: the place for its error, and what it becomes.
class call {
public:
    call() noexcept { c_.struct_size = sizeof c_; } // the call writes the rest
    operator kvconn_error_t *() noexcept { return &c_; }

    result<void> done(kvconn_status_t status) const noexcept {
        if (status != KVCONN_OK) return error_t(c_);
        return {};
    }
    /// The value that make() returns, if the call succeeded.
    template <class Make>
    auto made(kvconn_status_t status, Make make) const -> result<decltype(make())> {
        if (status != KVCONN_OK) return error_t(c_);
        return make();
    }

private:
    kvconn_error_t c_;
};

/// What this header itself refuses, before it calls C.
inline error_t invalid(const char *message) noexcept {
    kvconn_error_t c = KVCONN_ERROR_INIT;
    c.status = KVCONN_INVALID;
    c.scope = KVCONN_SCOPE_CALL;
    std::strncpy(c.message, message, sizeof c.message - 1);
    return error_t(c);
}

/// A text that C reads in two steps: its size, then as much as fits.
template <class Read>
result<std::string> read_text(Read read) {
    std::string text(4096, '\0');
    for (;;) {
        std::size_t needed = 0;
        call c;
        if (auto done = c.done(read(&text[0], text.size(), &needed, c)); !done) return done.error();
        if (needed <= text.size()) {
            text.resize(needed == 0 ? 0 : needed - 1); // without the NUL
            return text;
        }
        text.resize(needed + needed / 4); // the next text may need more
    }
}

/// Pointers to C's arrays: in place for ordinary counts, else allocated.
template <class T, std::size_t Few>
class array {
public:
    array(const T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <class Range, class Make>
    array(const Range &range, Make make) : size_(static_cast<std::size_t>(std::distance(std::begin(range), std::end(range)))) {
        T *to = few_.data();
        if (size_ > Few) {
            many_.resize(size_);
            to = many_.data();
        }
        data_ = to;
        for (const auto &element : range) *to++ = make(element);
    }
    array(const array &) = delete;
    array &operator=(const array &) = delete;

    [[nodiscard]] const T *data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

private:
    std::array<T, Few> few_; // written as far as it is used
    std::vector<T> many_;
    const T *data_ = nullptr;
    std::size_t size_;
};

} // namespace detail

// == Texts and frames =================================================================================================
//
// What the calls take. All of these refer to the caller's data and copy nothing; they are meant for a call's arguments.

/// A text with a NUL at its end: a std::string, or a const char *. A std::string_view has none and does not compile. A
/// std::string with a NUL inside is INVALID, not cut.
class text {
public:
    text(const char *c) noexcept : c_(c) {}
    text(const std::string &s) noexcept : c_(s.find('\0') == std::string::npos ? s.c_str() : has_nul) {}
    text(std::string_view) = delete;
    [[nodiscard]] const char *c() const noexcept { return c_; }

private:
    static constexpr const char *has_nul = "\xff (a NUL in a text)"; // no UTF-8, so every call refuses it
    const char *c_;
};

namespace detail {

template <class Range, class = void>
struct contiguous : std::false_type {};
template <class Range>
struct contiguous<Range, std::void_t<decltype(std::data(std::declval<const Range &>())),
                                     decltype(std::size(std::declval<const Range &>()))>> : std::true_type {
    using element = std::remove_cv_t<std::remove_pointer_t<decltype(std::data(std::declval<const Range &>()))>>;
};

/// Whether a range is the bytes of one frame: its elements are numbers, enums or std::byte. Not arrays of char, which are
/// texts that end at their NUL.
template <class Range, bool = contiguous<Range>::value>
struct is_bytes : std::false_type {};
template <class Range>
struct is_bytes<Range, true>
    : std::bool_constant<(std::is_arithmetic_v<typename contiguous<Range>::element> ||
                          std::is_enum_v<typename contiguous<Range>::element>) &&
                         !(std::is_array_v<Range> && std::is_same_v<typename contiguous<Range>::element, char>)> {};

} // namespace detail

/// One frame: a text ("room", std::string, std::string_view), or the bytes of a vector, array or span of numbers.
class frame_t {
public:
    frame_t(const void *data, std::size_t size) noexcept : c_{data, size} {}
    frame_t(const char *text) noexcept : c_{text, text == nullptr ? 0 : std::strlen(text)} {}
    frame_t(std::nullptr_t) = delete;
    frame_t(const kvconn_frame_t &c) noexcept : c_(c) {}
    template <class Range, std::enable_if_t<detail::is_bytes<Range>::value, int> = 0>
    frame_t(const Range &bytes) noexcept : c_{std::data(bytes), std::size(bytes) * sizeof *std::data(bytes)} {}

    [[nodiscard]] const void *data() const noexcept { return c_.data; }
    [[nodiscard]] std::size_t size() const noexcept { return c_.size; }
    [[nodiscard]] const kvconn_frame_t &c() const noexcept { return c_; }

private:
    kvconn_frame_t c_;
};

/// The bytes of one object as a frame: a number, or a struct that can be copied byte by byte.
template <class T>
[[nodiscard]] frame_t bytes_of(const T &object) noexcept {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>, "these bytes mean nothing to a peer");
    return frame_t(&object, sizeof object);
}
template <class T>
frame_t bytes_of(const T &&) = delete; // it would refer to a temporary that is gone

namespace detail {

/// Whether a range has one frame in each element. An element must outlive the loop over the range.
template <class Range, class = void>
struct is_frames : std::false_type {};
template <class Range>
struct is_frames<Range, std::void_t<decltype(*std::begin(std::declval<const Range &>()))>>
    : std::bool_constant<std::is_convertible_v<decltype(*std::begin(std::declval<const Range &>())), frame_t> &&
                         (std::is_lvalue_reference_v<decltype(*std::begin(std::declval<const Range &>()))> ||
                          std::is_trivially_copyable_v<std::decay_t<decltype(*std::begin(std::declval<const Range &>()))>>)> {};

} // namespace detail

/// The frames of one message: {"room", pages, slice}, one frame alone, or a range of frames (std::vector<std::string>).
/// Up to 16 frames need no allocation; nor does an array of kvconn_frame_t of any size.
class frames {
public:
    frames() = delete; // a message has at least one frame
    frames(std::initializer_list<frame_t> list) : c_(list, c) {}
    frames(const kvconn_frame_t *data, std::size_t size) noexcept : c_(data, size) {}
    frames(const std::vector<kvconn_frame_t> &v) noexcept : c_(v.data(), v.size()) {}
#ifdef __cpp_lib_span
    frames(std::span<const kvconn_frame_t> s) noexcept : c_(s.data(), s.size()) {}
#endif
    template <class One, std::enable_if_t<std::is_convertible_v<const One &, frame_t>, int> = 0>
    frames(const One &one) : c_(std::initializer_list<frame_t>{one}, c) {}
    template <class Range, class = void,
              std::enable_if_t<detail::is_frames<Range>::value && !std::is_convertible_v<const Range &, frame_t>, int> = 0>
    frames(const Range &range) : c_(range, c) {}

    [[nodiscard]] const kvconn_frame_t *data() const noexcept { return c_.data(); }
    [[nodiscard]] std::size_t size() const noexcept { return c_.size(); }

private:
    static kvconn_frame_t c(const frame_t &frame) noexcept { return frame.c(); }
    detail::array<kvconn_frame_t, 16> c_;
};

namespace detail {

/// Whether a copy of it refers to the same data: it does not own what it stands for.
template <class T>
struct refers : std::bool_constant<std::is_pointer_v<T> || std::is_base_of_v<frame_t, T> || std::is_same_v<T, kvconn_frame_t>> {};
template <class C, class Traits>
struct refers<std::basic_string_view<C, Traits>> : std::true_type {};
#ifdef __cpp_lib_span
template <class T, std::size_t Size>
struct refers<std::span<T, Size>> : std::true_type {};
#endif

template <class Range, class = void>
struct refers_each : std::false_type {};
template <class Range>
struct refers_each<Range, std::void_t<decltype(*std::begin(std::declval<const Range &>()))>>
    : refers<std::decay_t<decltype(*std::begin(std::declval<const Range &>()))>> {};

/// Whether what an argument of this type stands for is still there after the call. T is as a forwarding reference has it.
template <class T>
inline constexpr bool outlives_call = std::is_lvalue_reference_v<T> || refers<std::decay_t<T>>::value ||
                                      (refers_each<std::decay_t<T>>::value && !is_bytes<std::decay_t<T>>::value);

} // namespace detail

/// One frame of a message that is kept after the call. A temporary that owns its bytes does not compile: they would be
/// gone. Give it a name that lives as long as the message.
class kept_frame_t : public frame_t {
    template <class One>
    static constexpr bool is_frame = std::is_convertible_v<const std::remove_reference_t<One> &, frame_t> &&
                                     !std::is_base_of_v<kept_frame_t, std::decay_t<One>>;

public:
    kept_frame_t(const void *data, std::size_t size) noexcept : frame_t(data, size) {}
    kept_frame_t(std::nullptr_t) = delete;
    template <class One, std::enable_if_t<is_frame<One> && detail::outlives_call<One>, int> = 0>
    kept_frame_t(One &&one) noexcept : frame_t(std::as_const(one)) {}
    template <class One, std::enable_if_t<is_frame<One> && !detail::outlives_call<One>, int> = 0>
    kept_frame_t(One &&a_temporary_that_would_be_gone) = delete;
};

/// The frames of a message that is kept after the call: as frames, and the data must live as long as the message.
class kept_frames : public frames {
    template <class Some>
    static constexpr bool is_message = std::is_convertible_v<const std::remove_reference_t<Some> &, frames> &&
                                       !std::is_base_of_v<frames, std::decay_t<Some>>;

public:
    kept_frames(std::initializer_list<kept_frame_t> list) : frames(list) {}
    kept_frames(const kvconn_frame_t *data, std::size_t size) noexcept : frames(data, size) {}
    kept_frames(const frames &others) noexcept : frames(others.data(), others.size()) {}
    template <class Some, std::enable_if_t<is_message<Some> && detail::outlives_call<Some>, int> = 0>
    kept_frames(Some &&some) : frames(std::as_const(some)) {}
    template <class Some, std::enable_if_t<is_message<Some> && !detail::outlives_call<Some>, int> = 0>
    kept_frames(Some &&a_temporary_that_would_be_gone) = delete;
};

/// Endpoints of a node: {"tcp://10.0.0.7:5557", name}, or a range of std::string or const char *.
class endpoints {
public:
    endpoints(std::initializer_list<text> list) : c_(list, c) {}
    template <class Range, class Element = decltype(*std::begin(std::declval<const Range &>())),
              std::enable_if_t<std::is_convertible_v<Element, text>, int> = 0>
    endpoints(const Range &range) : c_(range, c) {
        static_assert(std::is_lvalue_reference_v<Element>, "the texts must outlive the call");
    }

    [[nodiscard]] const char *const *data() const noexcept { return c_.data(); }
    [[nodiscard]] std::size_t size() const noexcept { return c_.size(); }

private:
    static const char *c(text t) noexcept { return t.c(); }
    detail::array<const char *, 64> c_;
};

// == Options ==========================================================================================================

/// The value of an option: a text, a whole number, or true or false. Refers to the caller's text.
class option_value {
public:
    option_value(text value) noexcept : text_(value.c()) {}
    option_value(const char *value) noexcept : text_(value) {}
    option_value(const std::string &value) noexcept : option_value(text(value)) {}
    option_value(std::string_view) = delete;
    template <class Whole, std::enable_if_t<std::is_integral_v<Whole>, int> = 0>
    option_value(Whole number) noexcept : text_(nullptr), is_number_(true) {
        *std::to_chars(digits_.data(), digits_.data() + digits_.size() - 1, +number).ptr = 0;
    }
    [[nodiscard]] const char *c() const noexcept { return is_number_ ? digits_.data() : text_; }

private:
    const char *text_;
    bool is_number_ = false;
    std::array<char, 24> digits_{};
};

/// A set of options. It is empty at first: it overrides nothing. docs/options.md lists the names.
class options {
public:
    options() : c_(kvconn_options_new()) {}

    /// Sets one option. Changes nothing on an error.
    [[nodiscard]] result<void> try_set(text name, option_value value) noexcept {
        detail::call c;
        return c.done(kvconn_options_set(c_.get(), name.c(), value.c(), c));
    }
#ifdef __cpp_exceptions
    /// {{"node_loss", "any"}, {"stall_ms", 200}}
    options(std::initializer_list<std::pair<text, option_value>> list) : options() {
        for (const auto &[name, value] : list) set(name, value);
    }
    options &set(text name, option_value value) {
        try_set(name, value).value();
        return *this;
    }
#endif
    [[nodiscard]] const kvconn_options_t *c() const noexcept { return c_.get(); }

private:
    struct free {
        void operator()(kvconn_options_t *c) const noexcept { kvconn_options_free(c); }
    };
    std::unique_ptr<kvconn_options_t, free> c_;
};

/// Options as a call takes them: a set, or none, which means those that the endpoint remembers, else the configured ones.
class options_ref {
public:
    options_ref() noexcept = default;
    options_ref(std::nullptr_t) noexcept {}
    options_ref(const options &set) noexcept : c_(set.c()) {}
    [[nodiscard]] const kvconn_options_t *c() const noexcept { return c_; }

private:
    const kvconn_options_t *c_ = nullptr;
};

/// Changes a manager's settings.
[[nodiscard]] inline result<void> try_configure(manager_t m, const options &settings) noexcept {
    detail::call c;
    return c.done(kvconn_configure(m.raw(), settings.c(), c));
}

// == Managers and shutdown ============================================================================================

/// Owns a manager, and destroys it without waiting. Converts to the id that calls take. Empty after a move or a destroy:
/// calls with its id are then STALE. With settings: manager m(options{{"node_loss", "any"}});
class manager {
public:
    [[nodiscard]] static result<manager> try_create(options_ref settings = {}) noexcept {
        kvconn_manager_t m{};
        detail::call c;
        return c.made(kvconn_manager_create(settings.c(), &m, c), [&] { return manager(manager_t::from(m)); });
    }
#ifdef __cpp_exceptions
    explicit manager(options_ref settings = {}) : manager(try_create(settings).value()) {}
#endif
    manager(manager &&other) noexcept : m_(std::exchange(other.m_, gone)) {}
    manager &operator=(manager &&other) noexcept {
        manager old(std::move(other));
        std::swap(m_, old.m_);
        return *this; // and what this one owned is destroyed
    }
    ~manager() {
        if (m_ != gone) kvconn_manager_destroy(m_.raw(), 0, nullptr);
    }

    [[nodiscard]] manager_t get() const noexcept { return m_; }
    operator manager_t() const & noexcept { return m_; }
    operator manager_t() && = delete; // it would be destroyed before the id is used

    /// Ends it, and waits until its sockets are closed. It is gone also on status::timeout: libzmq closes the rest later.
    [[nodiscard]] result<void> try_destroy(milliseconds timeout) noexcept {
        detail::call c;
        return c.done(kvconn_manager_destroy(std::exchange(m_, gone).raw(), timeout.count(), c));
    }
#ifdef __cpp_exceptions
    void destroy(milliseconds timeout) { try_destroy(timeout).value(); }
#endif

private:
    static constexpr manager_t gone{UINT64_MAX}; // no id is 2^63 or more; 0 would be the process's own manager
    explicit manager(manager_t m) noexcept : m_(m) {}
    manager_t m_;
};

/// Ends everything in a manager, for a change of role. status::timeout: everything is closed, but something was not
/// acknowledged in time.
[[nodiscard]] inline result<void> try_disconnect_all(manager_t m, milliseconds flush) noexcept {
    detail::call c;
    return c.done(kvconn_disconnect_all(m.raw(), flush.count(), c));
}

/// Ends kvconn in this process for good; call it only at the end of main(). status::timeout: everything is closed, but
/// something was not acknowledged in time, and buffers of send_owned may still be in use until the process ends.
[[nodiscard]] inline result<void> try_shutdown(milliseconds flush) noexcept {
    detail::call c;
    return c.done(kvconn_shutdown(flush.count(), c));
}

// == Connections ======================================================================================================

/// What is known about a connection.
class connection_info_t {
public:
    explicit connection_info_t(const kvconn_connection_info_t &c) noexcept : c_(c) {}

    [[nodiscard]] kvconn::state state() const noexcept { return static_cast<kvconn::state>(c_.state); }
    /// status::ok while it lives, else why it ended.
    [[nodiscard]] kvconn::status status() const noexcept { return static_cast<kvconn::status>(c_.status); }
    [[nodiscard]] int os_errno() const noexcept { return c_.os_errno; }
    [[nodiscard]] conn_t conn() const noexcept { return conn_t::from(c_.conn); }
    [[nodiscard]] std::uint64_t accepted() const noexcept { return c_.accepted; }
    /// The sequence of the last acknowledged message; nothing if that is unknown.
    [[nodiscard]] std::optional<std::uint64_t> acknowledged() const noexcept { return detail::count(c_.acknowledged); }
    [[nodiscard]] std::uint64_t released() const noexcept { return c_.released; }
    [[nodiscard]] std::uint64_t queued_bytes() const noexcept { return c_.queued_bytes; }
    [[nodiscard]] std::uint32_t waiting() const noexcept { return c_.waiting; }
    [[nodiscard]] bool stalled() const noexcept { return c_.stalled != 0; }
    [[nodiscard]] kvconn::ended_by ended_by() const noexcept { return static_cast<kvconn::ended_by>(c_.ended_by); }
    [[nodiscard]] milliseconds age() const noexcept { return milliseconds(c_.age_ms); }
    [[nodiscard]] milliseconds ready() const noexcept { return milliseconds(c_.ready_ms); }
    [[nodiscard]] const char *endpoint() const noexcept { return c_.endpoint; }
    [[nodiscard]] const char *message() const noexcept { return c_.message; }
    [[nodiscard]] const kvconn_connection_info_t &c() const noexcept { return c_; }

private:
    kvconn_connection_info_t c_;
};

/// The live connection to an endpoint. Dials if there is none. With wait 0 it returns at once. On status::timeout the
/// dial may go on; error.conn() is its connection.
[[nodiscard]] inline result<conn_t> try_connect(manager_t m, text endpoint, milliseconds wait = default_timeout,
                                                options_ref settings = {}) noexcept {
    kvconn_conn_t conn{};
    detail::call c;
    return c.made(kvconn_connect(m.raw(), endpoint.c(), settings.c(), wait.count(), &conn, c),
                  [&] { return conn_t::from(conn); });
}

/// Ends this connection, and does not fence its endpoint. Never waits.
[[nodiscard]] inline result<void> try_disconnect(conn_t conn) noexcept {
    detail::call c;
    return c.done(kvconn_disconnect(conn.raw(), c));
}

/// Ends the live connection to an endpoint, and fences the endpoint. Never waits.
[[nodiscard]] inline result<void> try_disconnect_endpoint(manager_t m, text endpoint) noexcept {
    detail::call c;
    return c.done(kvconn_disconnect_endpoint(m.raw(), endpoint.c(), c));
}

/// What is known about a connection, also after its end.
[[nodiscard]] inline result<connection_info_t> try_connection_info(conn_t conn) noexcept {
    kvconn_connection_info_t info = KVCONN_CONNECTION_INFO_INIT;
    detail::call c;
    return c.made(kvconn_connection_info(conn.raw(), &info, c), [&] { return connection_info_t(info); });
}

/// The live connections of a manager, oldest first.
[[nodiscard]] inline result<std::vector<conn_t>> try_connections(manager_t m) {
    std::vector<kvconn_conn_t> raw(64);
    for (;;) {
        std::size_t count = 0;
        detail::call c;
        auto done = c.done(kvconn_connections(m.raw(), raw.data(), raw.size(), &count, c));
        if (!done) return done.error();
        if (count > raw.size()) {
            raw.resize(count + count / 4);
            continue;
        }
        std::vector<conn_t> all(count);
        for (std::size_t i = 0; i < count; i++) all[i] = conn_t::from(raw[i]);
        return all;
    }
}

/// The live connection to an endpoint. Never dials. status::not_found: there is none.
[[nodiscard]] inline result<conn_t> try_find(manager_t m, text endpoint) noexcept {
    kvconn_conn_t conn{};
    detail::call c;
    return c.made(kvconn_find(m.raw(), endpoint.c(), &conn, c), [&] { return conn_t::from(conn); });
}

// == Messages =========================================================================================================

/// Which connection accepted a message of send_to, and as which of its messages.
struct sent_to_t {
    conn_t conn;
    std::uint64_t sequence;
};

/// Sends one whole message on this connection, or nothing. Returns its sequence. Never dials.
[[nodiscard]] inline result<std::uint64_t> try_send(conn_t conn, const frames &message,
                                                    milliseconds timeout = default_timeout) noexcept {
    std::uint64_t sequence = 0;
    detail::call c;
    return c.made(kvconn_send(conn.raw(), message.data(), message.size(), timeout.count(), &sequence, c),
                  [&] { return sequence; });
}

/// Sends one whole message to an endpoint, whichever life of the peer is there. Dials if there is no connection.
[[nodiscard]] inline result<sent_to_t> try_send_to(manager_t m, text endpoint, const frames &message,
                                                   milliseconds timeout = default_timeout) noexcept {
    kvconn_conn_t conn{};
    std::uint64_t sequence = 0;
    detail::call c;
    return c.made(kvconn_send_to(m.raw(), endpoint.c(), message.data(), message.size(), timeout.count(), &conn,
                                 &sequence, c),
                  [&] { return sent_to_t{conn_t::from(conn), sequence}; });
}

/// A message whose frames lie one after the other in one buffer. Refers to the caller's data.
class packed {
public:
    /// sizes: a vector, array or span of std::uint32_t, one for each frame.
    template <class Sizes>
    packed(frame_t buffer, const Sizes &sizes) noexcept
        : buffer_(buffer), sizes_(std::data(sizes)), count_(std::size(sizes)) {}

    [[nodiscard]] const void *buffer() const noexcept { return buffer_.data(); }
    [[nodiscard]] const std::uint32_t *sizes() const noexcept { return sizes_; }
    [[nodiscard]] std::size_t size() const noexcept { return count_; }
    /// Whether the frames are as long as the buffer. A call with other sizes is INVALID.
    [[nodiscard]] bool fits() const noexcept {
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < count_; i++) sum += sizes_[i];
        return sum == buffer_.size();
    }

private:
    frame_t buffer_;
    const std::uint32_t *sizes_;
    std::size_t count_;
};

/// send, with all frames in one buffer.
[[nodiscard]] inline result<std::uint64_t> try_send_packed(conn_t conn, const packed &message,
                                                           milliseconds timeout = default_timeout) noexcept {
    if (!message.fits()) return detail::invalid("the sizes of the frames are not the size of the buffer");
    std::uint64_t sequence = 0;
    detail::call c;
    return c.made(kvconn_send_packed(conn.raw(), message.buffer(), message.sizes(), message.size(), timeout.count(),
                                     &sequence, c),
                  [&] { return sequence; });
}

/// send_to, with all frames in one buffer.
[[nodiscard]] inline result<sent_to_t> try_send_packed_to(manager_t m, text endpoint, const packed &message,
                                                          milliseconds timeout = default_timeout) noexcept {
    if (!message.fits()) return detail::invalid("the sizes of the frames are not the size of the buffer");
    kvconn_conn_t conn{};
    std::uint64_t sequence = 0;
    detail::call c;
    return c.made(kvconn_send_packed_to(m.raw(), endpoint.c(), message.buffer(), message.sizes(), message.size(),
                                        timeout.count(), &conn, &sequence, c),
                  [&] { return sent_to_t{conn_t::from(conn), sequence}; });
}

/// Waits until the messages of a connection up to sequence are acknowledged. Returns the sequence of the last acknowledged
/// one. On an error, acknowledged receives that too, if it is not null.
[[nodiscard]] inline result<std::uint64_t> try_flush(conn_t conn, std::uint64_t sequence = last_accepted,
                                                     milliseconds timeout = default_timeout,
                                                     std::uint64_t *acknowledged = nullptr) noexcept {
    std::uint64_t until = 0;
    detail::call c;
    const auto status = kvconn_flush(conn.raw(), sequence, timeout.count(), &until, c);
    if (acknowledged != nullptr) *acknowledged = until;
    return c.made(status, [&] { return until; });
}

// == Batches ==========================================================================================================

/// One message of a batch, and what became of it.
struct batch_item_t {
    conn_t conn; ///< None if it is skipped.
    kvconn::status status; ///< Of the last send_batch: ok if accepted or skipped, else why not.
    std::uint64_t sequence; ///< Of the last send_batch: its number on its connection, or 0.
};

/// Messages to many connections, for send_batch. Refers to the data of the frames until it is cleared or destroyed, so a
/// temporary such as std::to_string(3) does not compile as a frame. A batch that is cleared and filled again does not allocate.
class batch {
public:
    /// Adds a message. Returns its place.
    std::size_t add(conn_t conn, const kept_frames &message) {
        kvconn_batch_item_t item{};
        item.conn = conn.raw();
        item.frame_count = message.size();
        frames_.insert(frames_.end(), message.data(), message.data() + message.size());
        items_.push_back(item);
        return items_.size() - 1;
    }
    [[nodiscard]] std::size_t size() const noexcept { return items_.size(); }
    [[nodiscard]] batch_item_t operator[](std::size_t place) const noexcept {
        const auto &item = items_[place];
        return {conn_t::from(item.conn), static_cast<kvconn::status>(item.status), item.sequence};
    }
    /// Skips what was accepted, so that send_batch sends the rest again.
    void skip_accepted() noexcept {
        for (auto &item : items_) {
            if (item.status == KVCONN_OK) item.conn = conn_t().raw();
        }
    }
    void clear() noexcept {
        items_.clear();
        frames_.clear();
    }
    /// The items as C takes them. Valid until the batch changes.
    [[nodiscard]] kvconn_batch_item_t *c() noexcept {
        const kvconn_frame_t *next = frames_.data();
        for (auto &item : items_) {
            item.frames = next;
            next += item.frame_count;
        }
        return items_.data();
    }

private:
    std::vector<kvconn_batch_item_t> items_;
    std::vector<kvconn_frame_t> frames_; // of all items, in order
};

/// Sends every message of a batch under one deadline. status::partial: some were not accepted; each item says which.
[[nodiscard]] inline result<void> try_send_batch(batch &messages, milliseconds timeout = default_timeout) noexcept {
    detail::call c;
    return c.done(kvconn_send_batch(messages.c(), messages.size(), timeout.count(), c));
}

// == Owned buffers ====================================================================================================

/// A message for send_owned: frames that are not copied, and a callable that kvconn calls when they are released. The
/// callable is release(conn_t, std::uint64_t sequence, outcome) noexcept, and runs once, on the thread "kvconn-release";
/// it may own the buffers.
///
/// - Before it is sent, and after a send_owned that failed, the message is the caller's: it can be sent again, to another
///   rank. Destroying it destroys the callable without calling it.
/// - After a send_owned that succeeded it is empty. kvconn calls the callable, then destroys it, perhaps before send_owned
///   returns. In a forked child it is never called. Call shutdown before main returns if it may still run.
class owned_message {
public:
    template <class Release>
    owned_message(const kept_frames &message, Release release)
        : frames_(message.data(), message.data() + message.size()), release_(new kept_release<Release>(std::move(release))) {
        static_assert(std::is_nothrow_invocable_v<Release &, conn_t, std::uint64_t, outcome>,
                      "release must be callable with (conn_t, std::uint64_t, outcome), and noexcept");
    }
    /// Whether there is something to send.
    explicit operator bool() const noexcept { return release_ != nullptr; }

    /// Sends it as try_send_owned does.
    [[nodiscard]] result<std::uint64_t> try_send(conn_t conn, milliseconds timeout) noexcept {
        if (!release_) return detail::invalid("the message was sent before");
        std::uint64_t sequence = 0;
        detail::call c;
        // The callable may run, and be destroyed, before the call returns.
        releaser *release = release_.release();
        release->hand_over.store(true, std::memory_order_release);
        const auto status = kvconn_send_owned(conn.raw(), frames_.data(), frames_.size(), timeout.count(), released,
                                              release, &sequence, c);
        if (status != KVCONN_OK) release_.reset(release);
        return c.made(status, [&] { return sequence; });
    }

private:
    struct releaser {
        virtual ~releaser() = default;
        virtual void call(conn_t, std::uint64_t, outcome) noexcept = 0;
        // Shows ThreadSanitizer the hand-over to kvconn's thread, which happens inside the library.
        std::atomic<bool> hand_over{false};
    };
    template <class Release>
    struct kept_release final : releaser {
        explicit kept_release(Release &&r) : release(std::move(r)) {}
        void call(conn_t conn, std::uint64_t sequence, outcome o) noexcept override { release(conn, sequence, o); }
        Release release;
    };
    static void released(kvconn_conn_t conn, std::uint64_t sequence, kvconn_outcome_t o, void *user_data) noexcept {
        const std::unique_ptr<releaser> release(static_cast<releaser *>(user_data));
        (void)release->hand_over.load(std::memory_order_acquire);
        release->call(conn_t::from(conn), sequence, static_cast<outcome>(o));
    }

    std::vector<kvconn_frame_t> frames_;
    std::unique_ptr<releaser> release_;
};

/// Sends one whole message without copying it, or nothing. On an error the message is unchanged and the caller's.
[[nodiscard]] inline result<std::uint64_t> try_send_owned(conn_t conn, owned_message &message,
                                                          milliseconds timeout = default_timeout) noexcept {
    return message.try_send(conn, timeout);
}

/// The form without a callable: the buffers are the caller's again when wait_released(conn, sequence) succeeds. On an error
/// they are the caller's when the call returns.
[[nodiscard]] inline result<std::uint64_t> try_send_owned(conn_t conn, const kept_frames &message,
                                                          milliseconds timeout = default_timeout) noexcept {
    std::uint64_t sequence = 0;
    detail::call c;
    return c.made(kvconn_send_owned(conn.raw(), message.data(), message.size(), timeout.count(), nullptr, nullptr,
                                    &sequence, c),
                  [&] { return sequence; });
}

/// Waits until the buffers of send_owned are the caller's again, and their callables have returned.
[[nodiscard]] inline result<void> try_wait_released(conn_t conn, std::uint64_t sequence = last_accepted,
                                                    milliseconds timeout = default_timeout) noexcept {
    detail::call c;
    return c.done(kvconn_wait_released(conn.raw(), sequence, timeout.count(), c));
}

// == Nodes ============================================================================================================

/// What is known about a node.
class node_info_t {
public:
    explicit node_info_t(const kvconn_node_info_t &c) noexcept : c_(c) {}

    /// status::ok while it lives, else node_failed or disconnected.
    [[nodiscard]] kvconn::status status() const noexcept { return static_cast<kvconn::status>(c_.status); }
    [[nodiscard]] std::uint32_t endpoints() const noexcept { return c_.endpoints; }
    [[nodiscard]] std::uint32_t failures_in_row() const noexcept { return c_.failures_in_row; }
    [[nodiscard]] node_t node() const noexcept { return node_t::from(c_.node); }
    [[nodiscard]] std::uint64_t requests() const noexcept { return c_.requests; }
    [[nodiscard]] milliseconds age() const noexcept { return milliseconds(c_.age_ms); }
    [[nodiscard]] const char *name() const noexcept { return c_.name; }
    [[nodiscard]] const char *reason() const noexcept { return c_.reason; }
    [[nodiscard]] const kvconn_node_info_t &c() const noexcept { return c_; }

private:
    kvconn_node_info_t c_;
};

/// A node, and whether this call began its life.
struct opened_t {
    node_t node;
    bool created;
};

/// The live node of a name. If there is none, begins a new life.
[[nodiscard]] inline result<opened_t> try_node_open(manager_t m, text name) noexcept {
    kvconn_node_t node{};
    std::int32_t created = 0;
    detail::call c;
    return c.made(kvconn_node_open(m.raw(), name.c(), &node, &created, c),
                  [&] { return opened_t{node_t::from(node), created != 0}; });
}

/// The live node of a name. status::not_found: there is none.
[[nodiscard]] inline result<node_t> try_node_find(manager_t m, text name) noexcept {
    kvconn_node_t node{};
    detail::call c;
    return c.made(kvconn_node_find(m.raw(), name.c(), &node, c), [&] { return node_t::from(node); });
}

/// What is known about a node, also after its end.
[[nodiscard]] inline result<node_info_t> try_node_info(node_t node) noexcept {
    kvconn_node_info_t info = KVCONN_NODE_INFO_INIT;
    detail::call c;
    return c.made(kvconn_node_info(node.raw(), &info, c), [&] { return node_info_t(info); });
}

/// Registers endpoints with a node: all of them, or none on an error. Dials nothing.
[[nodiscard]] inline result<void> try_node_add_endpoints(node_t node, const endpoints &which,
                                                         options_ref settings = {}) noexcept {
    detail::call c;
    return c.done(kvconn_node_add_endpoints(node.raw(), which.data(), which.size(), settings.c(), c));
}

/// Takes endpoints away from a node, ends their connections and fences them.
[[nodiscard]] inline result<void> try_node_remove_endpoints(node_t node, const endpoints &which) noexcept {
    detail::call c;
    return c.done(kvconn_node_remove_endpoints(node.raw(), which.data(), which.size(), c));
}

/// Makes these the endpoints of a node: registers new ones, takes the others away. Changes nothing on an error.
[[nodiscard]] inline result<void> try_node_set_endpoints(node_t node, const endpoints &which,
                                                         options_ref settings = {}) noexcept {
    detail::call c;
    return c.done(kvconn_node_set_endpoints(node.raw(), which.data(), which.size(), settings.c(), c));
}

/// What node_connect came to for one endpoint.
struct connected_t {
    conn_t conn; ///< None if it has no connection. With status::timeout: that of a dial that goes on, if there is one.
    kvconn::status status; ///< Ok if it is READY (with wait 0: if it has a connection), else why not.
};

/// Registers endpoints with a node and dials all of them at the same time. Waits until each is READY or has failed.
/// status::partial: some failed, all are registered; the error is about the first of them. each is overwritten, and says
/// what each endpoint came to, in their order, also on an error.
[[nodiscard]] inline result<void> try_node_connect(node_t node, const endpoints &which, std::vector<connected_t> &each,
                                                   milliseconds wait = default_timeout, options_ref settings = {}) {
    std::vector<kvconn_conn_t> conns(which.size());
    std::vector<kvconn_status_t> statuses(which.size());
    each.resize(which.size()); // what can throw is done before the call
    detail::call c;
    const auto status = kvconn_node_connect(node.raw(), which.data(), which.size(), settings.c(), wait.count(), conns.data(),
                                            statuses.data(), c);
    for (std::size_t i = 0; i < each.size(); i++) {
        each[i] = {conn_t::from(conns[i]), static_cast<kvconn::status>(statuses[i])};
    }
    return c.done(status);
}

/// Notes that a request is in flight on a node. status::node_failed: no report lists it; the caller must fail it.
[[nodiscard]] inline result<void> try_node_track_request(node_t node, std::uint64_t request) noexcept {
    detail::call c;
    return c.done(kvconn_node_track_request(node.raw(), request, c));
}

/// Notes that a request is done. True: done, and no report will list it. False or an error: do not report it as done.
[[nodiscard]] inline result<bool> try_node_untrack_request(node_t node, std::uint64_t request) noexcept {
    std::int32_t was_tracked = 0;
    detail::call c;
    return c.made(kvconn_node_untrack_request(node.raw(), request, &was_tracked, c), [&] { return was_tracked != 0; });
}

// == Failures =========================================================================================================

/// One endpoint in a failure report.
class failed_endpoint_t {
public:
    explicit failed_endpoint_t(const kvconn_failed_endpoint_t &c) noexcept : c_(c) {}

    /// Whether another live node owns it too, so that its connection goes on.
    [[nodiscard]] bool spared() const noexcept { return c_.spared != 0; }
    /// The connection that ended with the node or goes on; else the last that the node lost before (its connection_info
    /// says peer_lost); else none, and the counts are 0.
    [[nodiscard]] conn_t conn() const noexcept { return conn_t::from(c_.conn); }
    [[nodiscard]] std::uint64_t accepted() const noexcept { return c_.accepted; }
    [[nodiscard]] std::optional<std::uint64_t> acknowledged() const noexcept { return detail::count(c_.acknowledged); }
    [[nodiscard]] const char *endpoint() const noexcept { return c_.endpoint; }
    [[nodiscard]] const kvconn_failed_endpoint_t &c() const noexcept { return c_; }

private:
    kvconn_failed_endpoint_t c_;
};

/// Owns the report of a node's failure; may be empty. Several threads may read one. Its texts live as long as it does.
class [[nodiscard]] failure {
public:
    failure() noexcept = default;
    /// Takes a report that a C call returned.
    explicit failure(kvconn_failure_t *c) noexcept : c_(c) {}
    /// Whether there is a report.
    explicit operator bool() const noexcept { return c_ != nullptr; }

    [[nodiscard]] node_t node() const noexcept { return node_t::from(kvconn_failure_node(c_.get())); }
    [[nodiscard]] const char *name() const noexcept { return kvconn_failure_name(c_.get()); }
    [[nodiscard]] const char *reason() const noexcept { return kvconn_failure_reason(c_.get()); }
    [[nodiscard]] std::chrono::system_clock::time_point time() const noexcept {
        return detail::wall_clock(kvconn_failure_time_ms(c_.get()));
    }
    /// The requests that were in flight, in ascending order.
    [[nodiscard]] std::vector<std::uint64_t> requests() const {
        std::size_t count = kvconn_failure_request_count(c_.get());
        std::vector<std::uint64_t> all(count);
        // Cannot fail: the report exists, and has as many. Empty reports are not asked.
        if (c_) kvconn_failure_requests(c_.get(), all.data(), all.size(), &count, nullptr);
        return all;
    }
    /// The endpoints that the node owned, in the order of their registration.
    [[nodiscard]] std::vector<failed_endpoint_t> endpoints() const {
        std::size_t count = kvconn_failure_endpoint_count(c_.get());
        std::vector<kvconn_failed_endpoint_t> all(count);
        if (c_) kvconn_failure_endpoints(c_.get(), all.data(), sizeof all[0], all.size(), &count, nullptr);
        return {all.begin(), all.end()};
    }
    [[nodiscard]] const kvconn_failure_t *c() const noexcept { return c_.get(); }

private:
    struct free {
        void operator()(kvconn_failure_t *c) const noexcept { kvconn_failure_free(c); }
    };
    std::unique_ptr<kvconn_failure_t, free> c_;
};

/// As an argument: the report is not returned, and take_failure returns it.
struct leave_report_t {};
inline constexpr leave_report_t leave_report{};

/// Fails a node: takes away all its endpoints and requests in one step. Never waits. reason may be null.
[[nodiscard]] inline result<failure> try_handle_failure(node_t node, text reason) noexcept {
    kvconn_failure_t *report = nullptr;
    detail::call c;
    return c.made(kvconn_handle_failure(node.raw(), reason.c(), &report, c), [&] { return failure(report); });
}
[[nodiscard]] inline result<void> try_handle_failure(node_t node, text reason, leave_report_t) noexcept {
    detail::call c;
    return c.done(kvconn_handle_failure(node.raw(), reason.c(), nullptr, c));
}

/// Reports the result of a health probe. Returns the failure report if this probe failed the node, else an empty one.
[[nodiscard]] inline result<failure> try_node_report_health(node_t node, bool healthy, text reason = nullptr) noexcept {
    kvconn_failure_t *report = nullptr;
    detail::call c;
    return c.made(kvconn_node_report_health(node.raw(), healthy, reason.c(), &report, c), [&] { return failure(report); });
}
[[nodiscard]] inline result<void> try_node_report_health(node_t node, bool healthy, text reason,
                                                         leave_report_t) noexcept {
    detail::call c;
    return c.done(kvconn_node_report_health(node.raw(), healthy, reason.c(), nullptr, c));
}

/// The oldest failure report that no call has returned yet; empty if none came within timeout. Does not wait, unless told
/// to; default_timeout is a year. destroy and shutdown end the wait with status::stale and status::shutdown.
[[nodiscard]] inline result<failure> try_take_failure(manager_t m, milliseconds timeout = milliseconds(0)) noexcept {
    kvconn_failure_t *report = nullptr;
    detail::call c;
    return c.made(kvconn_take_failure(m.raw(), timeout.count(), &report, c), [&] { return failure(report); });
}

// == Events ===========================================================================================================

/// One event.
class event_t {
public:
    explicit event_t(const kvconn_event_t &c) noexcept : c_(c) {}

    [[nodiscard]] event_kind kind() const noexcept { return static_cast<event_kind>(c_.kind); }
    [[nodiscard]] kvconn::status status() const noexcept { return static_cast<kvconn::status>(c_.status); }
    [[nodiscard]] int os_errno() const noexcept { return c_.os_errno; }
    [[nodiscard]] conn_t conn() const noexcept { return conn_t::from(c_.conn); } ///< The connection, or none.
    [[nodiscard]] node_t node() const noexcept { return node_t::from(c_.node); } ///< The node, or none.
    /// Whether it is the end of a connection: each connection has exactly one such event.
    [[nodiscard]] bool ends_connection() const noexcept {
        return conn() && status() != kvconn::status::ok && kind() != event_kind::stalled;
    }
    /// Ending events: messages accepted. Overflow: events lost. Of a node: requests failed.
    [[nodiscard]] std::uint64_t count() const noexcept { return c_.count; }
    /// The sequence of the connection's last acknowledged message; nothing if that is unknown.
    [[nodiscard]] std::optional<std::uint64_t> acknowledged() const noexcept { return detail::count(c_.acknowledged); }
    [[nodiscard]] kvconn::ended_by ended_by() const noexcept { return static_cast<kvconn::ended_by>(c_.ended_by); }
    [[nodiscard]] std::chrono::system_clock::time_point time() const noexcept { return detail::wall_clock(c_.time_ms); }
    [[nodiscard]] const char *endpoint() const noexcept { return c_.endpoint; }
    [[nodiscard]] const char *node_name() const noexcept { return c_.node_name; }
    [[nodiscard]] const char *message() const noexcept { return c_.message; }
    [[nodiscard]] const kvconn_event_t &c() const noexcept { return c_; }

private:
    kvconn_event_t c_;
};

/// A descriptor for poll or epoll, readable exactly while an event waits. It belongs to the manager: do not close it.
[[nodiscard]] inline result<int> try_event_fd(manager_t m) noexcept {
    int fd = -1;
    detail::call c;
    return c.made(kvconn_event_fd(m.raw(), &fd, c), [&] { return fd; });
}

/// Takes the oldest event, and waits for one if there is none. Nothing if none came in time.
[[nodiscard]] inline result<std::optional<event_t>> try_next_event(manager_t m,
                                                                   milliseconds timeout = default_timeout) noexcept {
    kvconn_event_t event;
    event.struct_size = sizeof event; // the call writes the rest
    detail::call c;
    return c.made(kvconn_next_event(m.raw(), timeout.count(), &event, c), [&] {
        return event.kind == KVCONN_EVENT_NONE ? std::nullopt : std::optional<event_t>(event);
    });
}

// == Observing ========================================================================================================

/// Describes a manager as text. The form may change.
[[nodiscard]] inline result<std::string> try_describe(manager_t m) {
    return detail::read_text([&](char *to, std::size_t size, std::size_t *needed, kvconn_error_t *error) {
        return kvconn_describe(m.raw(), to, size, needed, error);
    });
}

/// The metrics of a manager as OpenMetrics text.
[[nodiscard]] inline result<std::string> try_metrics_text(manager_t m) {
    return detail::read_text([&](char *to, std::size_t size, std::size_t *needed, kvconn_error_t *error) {
        return kvconn_metrics_text(m.raw(), to, size, needed, error);
    });
}

/// Writes the descriptions of all managers to a descriptor. Waits for no lock.
[[nodiscard]] inline result<void> try_dump(int fd) noexcept {
    detail::call c;
    return c.done(kvconn_dump(fd, c));
}

namespace detail {

/// A log function. It is never destroyed: a thread of kvconn may still be in it, also while the process exits.
struct logger {
    virtual ~logger() = default;
    virtual void call(log_level, const char *) noexcept = 0;
    logger *older = nullptr;
    std::atomic<bool> hand_over{false}; // as in owned_message
};
template <class Log>
struct kept_logger final : logger {
    explicit kept_logger(Log &&l) : log(std::move(l)) {}
    void call(log_level level, const char *line) noexcept override { log(level, line); }
    Log log;
};
inline void log_line(kvconn_log_level_t level, const char *line, void *user_data) noexcept {
    auto *log = static_cast<logger *>(user_data);
    (void)log->hand_over.load(std::memory_order_acquire);
    log->call(static_cast<log_level>(level), line);
}
inline std::atomic<logger *> loggers{nullptr}; // all of them, so that a leak checker finds them

} // namespace detail

/// Sends the log to a callable log(log_level, const char *line) noexcept, which runs on the thread "kvconn-log", one line at
/// a time, and may call kvconn. It is kept until the process ends, also after it was replaced: what it refers to must live
/// as long. status::timeout: set, but the function before has not returned from its last line.
template <class Log>
[[nodiscard]] result<void> try_set_log(Log log, log_level level) {
    static_assert(std::is_nothrow_invocable_v<Log &, log_level, const char *>,
                  "log must be callable with (log_level, const char *), and noexcept");
    detail::logger *logger = new detail::kept_logger<Log>(std::move(log));
    logger->older = detail::loggers.load();
    while (!detail::loggers.compare_exchange_weak(logger->older, logger)) {
    }
    logger->hand_over.store(true, std::memory_order_release);
    detail::call c;
    return c.done(kvconn_set_log(detail::log_line, logger, static_cast<kvconn_log_level_t>(level), c));
}
/// No log.
[[nodiscard]] inline result<void> try_set_log(std::nullptr_t) noexcept {
    detail::call c;
    return c.done(kvconn_set_log(nullptr, nullptr, KVCONN_LOG_OFF, c));
}

// == The throwing forms ===============================================================================================

#ifdef __cpp_exceptions

inline void configure(manager_t m, const options &settings) { try_configure(m, settings).value(); }
inline void disconnect_all(manager_t m, milliseconds flush) { try_disconnect_all(m, flush).value(); }
inline void shutdown(milliseconds flush) { try_shutdown(flush).value(); }

[[nodiscard]] inline conn_t connect(manager_t m, text endpoint, milliseconds wait = default_timeout, options_ref o = {}) {
    return try_connect(m, endpoint, wait, o).value();
}
inline void disconnect(conn_t conn) { try_disconnect(conn).value(); }
inline void disconnect_endpoint(manager_t m, text endpoint) { try_disconnect_endpoint(m, endpoint).value(); }
[[nodiscard]] inline connection_info_t connection_info(conn_t conn) { return try_connection_info(conn).value(); }
[[nodiscard]] inline std::vector<conn_t> connections(manager_t m) { return try_connections(m).value(); }
/// The live connection to an endpoint, or nothing.
[[nodiscard]] inline std::optional<conn_t> find(manager_t m, text endpoint) {
    auto found = try_find(m, endpoint);
    if (found.status() == status::not_found) return std::nullopt;
    return std::move(found).value();
}

inline std::uint64_t send(conn_t conn, const frames &message, milliseconds timeout = default_timeout) {
    return try_send(conn, message, timeout).value();
}
inline sent_to_t send_to(manager_t m, text endpoint, const frames &message, milliseconds timeout = default_timeout) {
    return try_send_to(m, endpoint, message, timeout).value();
}
inline std::uint64_t send_packed(conn_t conn, const packed &message, milliseconds timeout = default_timeout) {
    return try_send_packed(conn, message, timeout).value();
}
inline sent_to_t send_packed_to(manager_t m, text endpoint, const packed &message, milliseconds timeout = default_timeout) {
    return try_send_packed_to(m, endpoint, message, timeout).value();
}
inline std::uint64_t flush(conn_t conn, std::uint64_t sequence = last_accepted, milliseconds timeout = default_timeout) {
    return try_flush(conn, sequence, timeout).value();
}
/// True if every message was accepted. False (status::partial, which is not thrown): each item says whether it was.
[[nodiscard]] inline bool send_batch(batch &messages, milliseconds timeout = default_timeout) {
    const auto sent = try_send_batch(messages, timeout);
    if (sent.status() == status::partial) return false;
    sent.value();
    return true;
}
inline std::uint64_t send_owned(conn_t conn, owned_message &message, milliseconds timeout = default_timeout) {
    return try_send_owned(conn, message, timeout).value();
}
[[nodiscard]] inline std::uint64_t send_owned(conn_t conn, const kept_frames &message,
                                               milliseconds timeout = default_timeout) {
    return try_send_owned(conn, message, timeout).value();
}
inline void wait_released(conn_t conn, std::uint64_t sequence = last_accepted, milliseconds timeout = default_timeout) {
    try_wait_released(conn, sequence, timeout).value();
}

[[nodiscard]] inline opened_t node_open(manager_t m, text name) { return try_node_open(m, name).value(); }
/// The live node of a name, or nothing.
[[nodiscard]] inline std::optional<node_t> node_find(manager_t m, text name) {
    auto found = try_node_find(m, name);
    if (found.status() == status::not_found) return std::nullopt;
    return std::move(found).value();
}
[[nodiscard]] inline node_info_t node_info(node_t node) { return try_node_info(node).value(); }
inline void node_add_endpoints(node_t node, const endpoints &which, options_ref o = {}) {
    try_node_add_endpoints(node, which, o).value();
}
inline void node_remove_endpoints(node_t node, const endpoints &which) { try_node_remove_endpoints(node, which).value(); }
inline void node_set_endpoints(node_t node, const endpoints &which, options_ref o = {}) {
    try_node_set_endpoints(node, which, o).value();
}
/// True if every endpoint is READY. False (status::partial, which is not thrown): each says which are not, and why.
[[nodiscard]] inline bool node_connect(node_t node, const endpoints &which, std::vector<connected_t> &each,
                                       milliseconds wait = default_timeout, options_ref o = {}) {
    const auto connected = try_node_connect(node, which, each, wait, o);
    if (connected.status() == status::partial) return false;
    connected.value();
    return true;
}
inline void node_track_request(node_t node, std::uint64_t request) { try_node_track_request(node, request).value(); }
[[nodiscard]] inline bool node_untrack_request(node_t node, std::uint64_t request) {
    return try_node_untrack_request(node, request).value();
}

[[nodiscard]] inline failure handle_failure(node_t node, text reason) { return try_handle_failure(node, reason).value(); }
inline void handle_failure(node_t node, text reason, leave_report_t) { try_handle_failure(node, reason, leave_report).value(); }
[[nodiscard]] inline failure node_report_health(node_t node, bool healthy, text reason = nullptr) {
    return try_node_report_health(node, healthy, reason).value();
}
inline void node_report_health(node_t node, bool healthy, text reason, leave_report_t) {
    try_node_report_health(node, healthy, reason, leave_report).value();
}
[[nodiscard]] inline failure take_failure(manager_t m, milliseconds timeout = milliseconds(0)) {
    return try_take_failure(m, timeout).value();
}

[[nodiscard]] inline int event_fd(manager_t m) { return try_event_fd(m).value(); }
[[nodiscard]] inline std::optional<event_t> next_event(manager_t m, milliseconds timeout = default_timeout) {
    return try_next_event(m, timeout).value();
}

/// The events of a manager, for a loop: for (const event_t &event : events(m)). Ends when none came within timeout.
class [[nodiscard]] events {
public:
    explicit events(manager_t m, milliseconds timeout = milliseconds(0)) noexcept : m_(m), timeout_(timeout) {}

    class iterator {
    public:
        using iterator_category = std::input_iterator_tag;
        using value_type = event_t;
        using difference_type = std::ptrdiff_t;
        using pointer = const event_t *;
        using reference = const event_t &;

        iterator() noexcept = default;
        explicit iterator(const events *of) : of_(of) { ++*this; }
        reference operator*() const noexcept { return *event_; }
        pointer operator->() const noexcept { return &*event_; }
        iterator &operator++() {
            event_ = next_event(of_->m_, of_->timeout_);
            return *this;
        }
        void operator++(int) { ++*this; }
        friend bool operator==(const iterator &a, const iterator &b) noexcept { return !a.event_ && !b.event_; }
        friend bool operator!=(const iterator &a, const iterator &b) noexcept { return !(a == b); }

    private:
        const events *of_ = nullptr;
        std::optional<event_t> event_;
    };
    [[nodiscard]] iterator begin() const { return iterator(this); }
    [[nodiscard]] iterator end() const noexcept { return {}; }

private:
    manager_t m_;
    milliseconds timeout_;
};

[[nodiscard]] inline std::string describe(manager_t m) { return try_describe(m).value(); }
[[nodiscard]] inline std::string metrics_text(manager_t m) { return try_metrics_text(m).value(); }
inline void dump(int fd) { try_dump(fd).value(); }
template <class Log>
void set_log(Log log, log_level level) {
    try_set_log(std::move(log), level).value();
}
inline void set_log(std::nullptr_t) { try_set_log(nullptr).value(); }

#endif // __cpp_exceptions

} // namespace kvconn

/// An id is a key of unordered containers.
template <class Raw, class Kind>
struct std::hash<kvconn::id<Raw, Kind>> {
    std::size_t operator()(kvconn::id<Raw, Kind> id) const noexcept { return std::hash<std::uint64_t>()(id.number()); }
};

#endif // KVCONN_HPP
