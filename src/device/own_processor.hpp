// Threads that compute keep to processors of their own. A kernel may wake a thread on a busy processor, beside an idle
// one, and leave both threads there for some hundred milliseconds, at half of their speed. So who computes says so now
// and then, and who finds another such thread of this process on its processor moves away. Nobody is bound: what a
// thread may use is the same before and after.
#pragma once

namespace tessera::device {

// Called by a thread that is about to compute; costs some ten nanoseconds. Of threads that share a processor one stays,
// mostly the one that called first in its life, and another moves to one that it may use and that no such thread is on,
// at most once in 10 ms. Where a thread was at its last call counts until it ends, also while it sleeps. Never blocks,
// nor fails: where nothing is free the thread stays.
void settle_on_own_processor() noexcept;

}  // namespace tessera::device
