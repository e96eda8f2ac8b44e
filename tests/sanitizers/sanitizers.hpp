// Whether this source is compiled for a sanitizer, as GCC and as clang say it: TESSERA_ADDRESS_SANITIZER and
// TESSERA_THREAD_SANITIZER are 0 or 1.
#pragma once

#if defined(__has_feature)
#define TESSERA_HAS_FEATURE(name) __has_feature(name)
#else
#define TESSERA_HAS_FEATURE(name) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || TESSERA_HAS_FEATURE(address_sanitizer)
#define TESSERA_ADDRESS_SANITIZER 1
#else
#define TESSERA_ADDRESS_SANITIZER 0
#endif

#if defined(__SANITIZE_THREAD__) || TESSERA_HAS_FEATURE(thread_sanitizer)
#define TESSERA_THREAD_SANITIZER 1
#else
#define TESSERA_THREAD_SANITIZER 0
#endif

// A function that ThreadSanitizer does not see: neither what it reads nor that it begins and ends.
#if TESSERA_HAS_FEATURE(thread_sanitizer)
#define TESSERA_UNSEEN_BY_THREAD_SANITIZER __attribute__((disable_sanitizer_instrumentation))
#elif TESSERA_THREAD_SANITIZER
#define TESSERA_UNSEEN_BY_THREAD_SANITIZER __attribute__((no_sanitize_thread))
#else
#define TESSERA_UNSEEN_BY_THREAD_SANITIZER
#endif
