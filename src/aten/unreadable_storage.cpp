#include "aten/unreadable_storage.h"

#include <utility>

#include <c10/core/CPUAllocator.h>

namespace stepc {

namespace {

// Access to private members, as explicit instantiations are free to name them.
template <class Tag, auto kMember>
struct Reach {
  friend constexpr auto member(Tag) { return kMember; }
};
struct ThrowOnRead {
  friend constexpr auto member(ThrowOnRead);
};
struct CheckOnWrite {
  friend constexpr auto member(CheckOnWrite);
};
template struct Reach<ThrowOnRead, &c10::StorageImpl::throw_on_immutable_data_ptr_>;
template struct Reach<CheckOnWrite, &c10::StorageImpl::has_mutable_data_ptr_check_>;

}  // namespace

c10::Storage unreadable_storage(int64_t bytes, const c10::Device& device) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(nullptr, device),
                       c10::GetAllocator(device.type()), /*resizable=*/true);
  make_unreadable(*storage.unsafeGetStorageImpl());
  return storage;
}

bool is_unreadable(const c10::StorageImpl& storage) { return storage.*member(ThrowOnRead()); }

void make_readable(c10::StorageImpl& storage, c10::DataPtr memory) {
  storage.*member(ThrowOnRead()) = false;
  storage.*member(CheckOnWrite()) = false;
  storage.set_data_ptr(std::move(memory));
}

void make_unreadable(c10::StorageImpl& storage) {
  storage.set_data_ptr(c10::DataPtr(nullptr, storage.device()));
  storage.*member(ThrowOnRead()) = true;
  storage.*member(CheckOnWrite()) = true;
}

}  // namespace stepc
