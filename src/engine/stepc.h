// The public header of stepc.
#pragma once

#include "base/check.h"
#include "base/module_scope.h"
#include "engine/accelerate.h"
#include "engine/virtual_door.h"
