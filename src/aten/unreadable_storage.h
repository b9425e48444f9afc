// Storages whose memory is not there yet: whoever asks for their data gets an error instead of zeros or a fault.
//
// Depends on LibTorch internals: StorageImpl's private flags, which it sets and never clears.
#pragma once

#include <cstdint>

#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

namespace stepc {

// Of so many bytes there.
c10::Storage unreadable_storage(int64_t bytes, const c10::Device& device);
bool is_unreadable(const c10::StorageImpl& storage);
// From here on it is `memory`, of as many bytes.
void make_readable(c10::StorageImpl& storage, c10::DataPtr memory);
// Its memory is given back.
void make_unreadable(c10::StorageImpl& storage);

}  // namespace stepc
